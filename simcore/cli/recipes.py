"""`rankscope import`, and the options by which other commands take recipes. Imports the engine when called."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry
    from simcore.recipes.imported import Imported

__all__ = ["FilesBeside", "Gpus", "Loose", "SeqLen", "Topology", "import_", "read_entries"]

Gpus = Annotated[int | None, typer.Option("--gpus", min=1, max=4_194_304, help="Of a recipe: number of GPUs.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", min=1, help="Of a recipe: tokens of a sequence.")]
FilesBeside = Annotated[list[str] | None, typer.Option(
    "--with", metavar="FILE", help="Of a recipe: a file beside it, such as its launch script or DeepSpeed's JSON.")]
Loose = Annotated[bool, typer.Option("--loose", help="Of a recipe: leave out what is unknown or not modelled.")]
Topology = Annotated[str, typer.Option("--topology", metavar="NAME", help="Of a recipe: the machine.")]


def import_(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files of one recipe.")],
    *,
    named: Annotated[str, typer.Option("--from", metavar="FORMAT", help="Its format; omitted: recognised.")] = "",
    gpus: Gpus = None,
    seq_len: SeqLen = None,
    topology: Topology = "",
    beside: FilesBeside = None,
    loose: Annotated[bool, typer.Option("--loose", help="List keys that are unknown or not modelled.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a list of one import as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
) -> None:
    """Make a scenario of a training recipe, with the origin of every key.

    Printed as YAML: beside each key the line of the recipe, the release's default, the answer or the rule; below, the
    recipe's keys that change nothing. Exit code 2 if the recipe leaves something open or has a key that is not known,
    and, behind the scenario, if it does not run: its model is not known, its layout not legal, or a step not modelled.
    """
    from simcore.inputs.loading import settings_of
    from simcore.inputs.named_files import named_from
    from simcore.lint.all_problems import expect_all
    from simcore.recipes.answers import Answers
    from simcore.recipes.importing import import_recipe
    from simcore.recipes.text import scenario_text

    variables, others = _split(overrides or ())
    settings = settings_of(others)
    answers = Answers.of_options(gpus, seq_len, topology, settings, variables)
    imported = import_recipe([*files, *(beside or ())], answers, named, loose=loose).with_settings(settings)
    expect_all(imported)
    problems = _check(imported)
    folders = imported.document().folder, Path() if output is None else output.parent
    imported = replace(imported, values=named_from(imported.values, *folders))
    if output is None or json:
        typer.echo(_json(imported) if json else scenario_text(imported), nl=False)
    else:
        _write(output, scenario_text(imported), imported, force=force)
    _end(problems)


def _check(imported: Imported) -> list[Problem]:
    """Reasons why the scenario does not run; InputError for values that none may have, at their lines of the recipe."""
    from simcore.inputs.scenario import parse_scenario
    from simcore.simulate import check

    return [Problem(one.where, one.message, one.rule) for one in check(parse_scenario(imported.document())).problems]


def _end(problems: Sequence[Problem]) -> None:
    """Says why a scenario does not run, and ends with exit code 2 if there is a reason."""
    from simcore.cli.output import complain

    if problems:
        complain(problems)
        raise typer.Exit(2)


def _write(path: Path, text: str, imported: Imported, *, force: bool) -> None:
    from simcore.cli.output import say, write_new

    write_new(path, text, force=force)
    missed = sum(one.kind in ("not modelled", "unknown") for one in imported.left)
    say(f"wrote {path}: {len(imported.origins)} keys; {missed} of the recipe's are not modelled, "
        f"{sum(one.kind == 'no effect' for one in imported.left)} have no effect")


def _json(imported: Imported) -> str:
    keys = {".".join(map(str, path)): asdict(origin) for path, origin in imported.origins.items()}
    shown = {"format": imported.format, "path": imported.path, "scenario": imported.values, "origins": keys,
             "left": [asdict(one) for one in imported.left],
             "decides": [{**asdict(one), "why": str(one)} for one in imported.decides]}
    return f"[\n{json_module.dumps(shown)}\n]\n"


def read_entries(paths: Sequence[str | Path], overrides: Sequence[str], gpus: int | None, seq_len: int | None,
                 topology: str, *, beside: Sequence[str] | None = None, only: bool = True,
                 loose: bool = False, taken: list[Imported] | None = None) -> list[Entry]:
    """Entries of scenario files and of recipes; `gpus`, `seq_len`, `topology` answer what recipes leave open.

    `beside`: further files of each recipe; `loose`: what is unknown or not modelled there is left out; `overrides` may
    have variables of its script (`env.NAME=VALUE`).

    What a recipe asks for and the answer leaves out is said on standard error. `only`: answers are for recipes alone;
    InputError if there is none. `taken`: gets every recipe that was imported.
    """
    from simcore.inputs.loading import read, settings_of
    from simcore.lint.all_problems import expect_all
    from simcore.recipes.answers import Answers
    from simcore.recipes.importing import Opener

    taken = [] if taken is None else taken
    variables, others = _split(overrides)
    answers = Answers.of_options(gpus, seq_len, topology, settings_of(others), variables)
    entries = read(paths, others, Opener(answers, taken.append, tuple(beside or ()), loose, expect_all))
    _say_missed(taken, loose=loose)
    given = [*(f"--with {path}" for path in beside or ()), *(f"--set env.{name}" for name in variables)]
    if only:
        given += [one.where for one in (answers.gpus, answers.seq_len, answers.topology) if one]
    if given and not taken and all(entry.scenario for entry in entries):
        raise InputError(Problem(given[0], "answers what a recipe leaves open; of a scenario --set changes a key"))
    return entries


def _split(overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Variables of the environment (`env.NAME=VALUE`) and the other overrides; InputError for what is no variable."""
    variables, others = {}, []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not key.startswith("env."):
            others.append(text)
        elif not equals or not re.fullmatch(r"[A-Za-z_]\w*", key.removeprefix("env.")):
            raise InputError(Problem(f"--set {text}"[:120], "expected env.NAME=VALUE, a variable of a recipe's script"))
        else:
            variables[key.removeprefix("env.")] = value
    return variables, others


def _say_missed(taken: Sequence[Imported], *, loose: bool) -> None:
    from simcore.cli.output import complain
    from simcore.recipes.text import missed, missed_line

    together: dict[tuple[str, str], list[str]] = {}
    for one in (one for imported in taken for one in imported.left if one.kind == "not modelled"):
        together.setdefault((one.where, one.why), []).append(f"{one.key}: {one.value}")
    complain([Problem(where, f"{', '.join(keys)}: not modelled: {why}") for (where, why), keys in together.items()])
    if loose:
        unknown = [one for imported in taken for one in imported.left if one.kind == "unknown"]
        complain([Problem(one.where, f"{one.key}: {one.value}: unknown; {one.why}" if one.key else one.why)
                  for one in unknown])
        complain([Problem(imported.path, missed_line(keys)) for imported in taken if (keys := missed(imported.left))])
