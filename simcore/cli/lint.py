"""`rankscope lint`: what is wrong with recipes and scenarios before they run. Imports the engine when called."""

from __future__ import annotations

import json as json_module
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simcore.cli.recipes import Gpus, SeqLen, Topology

if TYPE_CHECKING:
    from simcore.lint.linting import Linted

__all__ = ["lint"]


class Severity(StrEnum):
    """Choice of `--fail-on`, from the least to the worst."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


_LEVELS: Final = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}
"""Levels of GitHub's annotations."""


class Annotations(StrEnum):
    """Choice of `--format`: annotations of lines for GitHub (workflow commands)."""

    GITHUB = "github"


def lint(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Recipes, scenarios, folders or globs.")],
    *,
    beside: Annotated[list[str] | None, typer.Option(
        "--with", metavar="FILE", help="A further file of one recipe: its launch command, DeepSpeed's JSON.")] = None,
    named: Annotated[str, typer.Option("--from", metavar="FORMAT", help="Their format; omitted: recognised.")] = "",
    fail_on: Annotated[Severity, typer.Option(help="Least severity of a finding that is exit 1.")] = Severity.WARNING,
    report_format: Annotated[Annotations | None, typer.Option("--format", help="CI output format.")] = None,
    gpus: Gpus = None,
    seq_len: SeqLen = None,
    topology: Topology = "",
    json: Annotated[bool, typer.Option("--json", help="Print a list of files as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
) -> None:
    """Say what is wrong with recipes or scenarios before they run: nothing is simulated.

    Of each finding its code, place, what is wrong, what to write instead, and the rule with its source (docs/lint.md).
    What a recipe leaves open is assumed. Exit code 0: nothing, or less than --fail-on; 1: a finding; 2: wrong input.
    """
    from simcore.cli.output import complain
    from simcore.inputs.loading import settings_of
    from simcore.lint.linting import lint_all
    from simcore.recipes.answers import Answers

    answers = Answers.of_options(gpus, seq_len, topology, settings_of(overrides or ()))
    linted = list(lint_all(paths, beside or (), answers, overrides or (), named))
    if json:
        typer.echo(f"{json_module.dumps([asdict(one) for one in linted], indent=1)}\n", nl=False)
    elif report_format is not None:
        typer.echo(_annotations(linted), nl=False)
    else:
        for line in _lines(linted):
            typer.echo(line)
    complain([*(problem for one in linted for problem in one.problems),
              *(f"not judged: {text}" for one in linted for text in one.unjudged)])
    raise typer.Exit(_code(linted, fail_on))


def _code(linted: Sequence[Linted], fail_on: Severity) -> int:
    """Exit code: 2 for a file that is not judged, 1 for a finding of the severity or worse."""
    if any(one.problems for one in linted):
        return 2
    least = list(Severity).index(fail_on)
    return int(any(finding.rank >= least for one in linted for finding in one.findings))


def _annotations(linted: Sequence[Linted]) -> str:
    from simcore.batch.gate import annotation

    return "".join(annotation(_LEVELS[Severity(one.severity)], one.where, one.code,
                              f"{one.message}; instead: {one.instead} [{one.source}]")
                   for file in linted for one in file.findings)


def _lines(linted: Sequence[Linted]) -> Iterator[str]:
    """Lines of text: each finding with what to write and its source, then how many there are."""
    from simcore.cli.sheets.tables import plain

    for finding in (finding for one in linted for finding in one.findings):
        yield plain(str(finding))
        yield plain(f"    instead: {finding.instead}")
        yield plain(f"    source: {finding.source}")
    counts = Counter(finding.severity for one in linted for finding in one.findings)
    told = ", ".join(_counted(counts[one.value], one.value) for one in reversed(list(Severity)))
    yield f"{told} in {_counted(sum(not one.problems for one in linted), 'file')}"


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'s' * (number != 1)}"
