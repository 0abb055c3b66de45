"""`rankscope convert`: a scenario as a recipe of another tool. Imports the engine when called."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.cli.recipes import Gpus, SeqLen, Topology, read_entries
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry
    from simcore.inputs.scenario import Scenario
    from simcore.recipes.converted import Converted

__all__ = ["convert"]


def convert(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="Scenario file, or a recipe.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="Format of the recipe, such as automodel.")],
    into: Annotated[str, typer.Option(metavar="FILE", help="Recipe of yours: only what must differ is changed.")] = "",
    name: Annotated[str, typer.Option("--name", help="Only this scenario, of a sweep.")] = "",
    loose: Annotated[bool, typer.Option("--loose", help="List keys that the recipe cannot say.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a list of one recipe as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    gpus: Gpus = None, seq_len: SeqLen = None, topology: Topology = "",
) -> None:
    """Write a scenario as a training recipe, with its launch command.

    The recipe is read back and asks in every key for what the scenario asks for; a key that it cannot say is refused
    at its line. Data, learning rate and files of checkpoints are yours. Exit code 2 for a key that is refused.
    """
    from simcore.recipes.conversion.converting import convert as write
    from simcore.recipes.text import recipe_text

    asked = _one(read_entries([scenario], overrides or (), gpus, seq_len, topology), scenario, name)
    made = write(asked, to, into, output.name if output else "")
    if loose:
        made = made.without_refused()
    made.expect_complete()
    text = made.text if into else recipe_text(made, asked.name)
    if json:
        typer.echo(_json(made, asked), nl=False)
    elif output is None:
        typer.echo(text + "".join(f"# ==> {file}\n{beside}" for file, beside in made.beside.items()), nl=False)
    else:
        _write({output: text, **{output.parent / file: one for file, one in made.beside.items()}}, force=force)
    if not json and (output or into or not made.has_comments):
        _say_rest(made, listed=not made.has_comments or bool(into))


def _one(entries: Sequence[Entry], path: str, name: str) -> Scenario:
    """The scenario of a file, or the one of a sweep that `name` names; InputError for several."""
    problems = [problem for entry in entries for problem in entry.problems]
    if problems:
        raise InputError(problems)
    found = [entry.scenario for entry in entries if entry.scenario and name in ("", entry.name)]
    if len(found) != 1:
        names = ", ".join(entry.name for entry in entries)
        raise InputError(Problem(path, f"holds {len(entries)} scenarios ({names[:300]}): --name says which"))
    return found[0]


def _write(texts: Mapping[Path, str], *, force: bool) -> None:
    from simcore.cli.output import say, write_all_new

    write_all_new(texts, force=force)
    for path in texts:
        say(f"wrote {path}")


def _say_rest(made: Converted, *, listed: bool) -> None:
    """Says the launch command; `listed`: also what the recipe does not have, which its file does not say."""
    from simcore.cli.output import say
    from simcore.recipes.text import left_line

    for line in made.launch.splitlines():
        say(f"launch: {line}")
    for one in made.left if listed else ():
        say(f"not in it: {left_line(one)}")


def _json(made: Converted, asked: Scenario) -> str:
    shown = {"format": made.format, "name": asked.name, "recipe": made.text, "launch": made.launch,
             "beside": dict(made.beside),
             "left": [asdict(one) for one in made.left]}
    return f"[\n{json_module.dumps(shown)}\n]\n"
