"""`rankscope verify`: a scenario against the framework itself, on this machine. Imports the engine when called."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simcore.cli.recipes import FilesBeside, Gpus, SeqLen, Topology
from simcore.errors import Problem, RankscopeError

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry
    from simcore.verify.compare import Line
    from simcore.verify.sides.side import Side
    from simcore.verify.verify import Verified

__all__ = ["verify"]


def verify(
    paths: Annotated[list[str], typer.Argument(metavar="SCENARIO...", help="Scenarios or recipes, folders or globs.")],
    *,
    rank: Annotated[int, typer.Option("--rank", min=0, help="The rank that is compared.")] = 0,
    layers: Annotated[int | None, typer.Option(
        min=1, max=1024, help="Layers that are built; omitted: a few of each kind.")] = None,
    python: Annotated[Path | None, typer.Option(
        metavar="PATH", help="Python of an environment that has the framework; omitted: one is made.")] = None,
    timeout: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds for the framework's side.")] = 900,
    real: Annotated[list[str] | None, typer.Option(
        "--real-set", metavar="KEY=VALUE", help="Give only the framework's side another value: a difference.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of outcomes as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    gpus: Gpus = None, seq_len: SeqLen = None, topology: Topology = "", beside: FilesBeside = None,
) -> None:
    """Run a layout through the real framework on this machine, without a GPU, and compare it with the engine's answer.

    Placement tensor by tensor, collectives one by one, the peak where the framework runs a step: agreement, or the
    first difference (docs/verify.md). The first call makes an environment of pinned packages under the user's cache
    folder. Exit code 0: all agree; 1: a difference, or the framework refuses; 2: wrong input, or it cannot be run.
    """
    from simcore.cli.output import complain
    from simcore.cli.recipes import read_entries
    from simcore.inputs.loading import settings_of

    entries = read_entries(paths, overrides or (), gpus, seq_len, topology, beside=beside)
    asked = {"rank": rank, "layers": layers, "real": settings_of(real or ()), "timeout": timeout}
    done, problems = _verified(entries, python, asked, shown=not json)
    if json:
        typer.echo(json_module.dumps([asdict(one) | {"agrees": one.agrees} for one in done], indent=1))
    complain(problems)
    raise typer.Exit(2 if problems else int(not all(one.agrees for one in done)))


def _verified(entries: Sequence[Entry], python: Path | None, asked: dict[str, Any], *, shown: bool
              ) -> tuple[list[Verified], list[Problem]]:
    """Outcomes of all scenarios, printed one by one if `shown`, and the problems of those that have none."""
    from simcore.cli.output import say
    from simcore.verify.environment import environment
    from simcore.verify.verify import verify as against

    def interpreter(side: Side) -> Path:
        return python or environment(side.pins, say)

    done: list[Verified] = []
    problems = [problem for entry in entries for problem in entry.problems]
    for scenario in (entry.scenario for entry in entries if entry.scenario):
        try:
            done.append(against(scenario, interpreter, **asked))
        except RankscopeError as error:
            problems += error.problems
            continue
        if shown:
            typer.echo("\n".join(_lines(done[-1])))
    return done, problems


def _lines(one: Verified) -> Iterator[str]:
    """Lines of text: what ran, one a subject, the outcome."""
    from simcore.cli.sheets.tables import plain

    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    yield plain(f"{one.name}: {one.framework}{versions and f' ({versions})'}")
    yield plain(f"    {', '.join((*one.smaller, f'rank {one.rank} of {one.world}'))}")
    yield from (plain(f"    {line.subject:<12} {_told(line)}") for line in one.lines)
    if one.refused:
        yield plain(f"    refused by the framework: {one.refused}")
    outcome = "agrees" if one.agrees else "refused" if one.refused else "differs"
    yield f"    {outcome}, {one.seconds:.0f} s"


_LISTS: Final = {"placement": "tensors agree", "collectives": "calls agree, in their order",
                 "groups": "communicators agree"}
"""Subjects of many things, of which the first that differs is told; the others are one number."""


def _told(line: Line) -> str:
    if line.skipped:
        return f"not compared: {line.skipped}"
    if line.difference:
        return f"{'differs first at' if line.subject in _LISTS else 'differs:'} {line.difference}"
    return f"{line.num_compared:,} {_LISTS[line.subject]}" if line.subject in _LISTS else "agrees to the byte"
