"""A launch script of the user's, whose arguments are changed as little as a scenario needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simcore.errors import NotYet, RankscopeError
from simcore.inputs.scenario import parse_scenario
from simcore.recipes.conversion.script_text import ScriptText
from simcore.recipes.conversion.writing import Writing
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.recipe_writer import ScriptArguments
from simcore.recipes.settled import settled

__all__ = ["patched_script"]

_PROCESSES: Final = (("--nproc-per-node", "--nproc_per_node"), ("--nnodes",))
_Edit = Callable[[ScriptText], ScriptText]


def patched_script(writing: Writing, file: RecipeFile, known: ScriptArguments) -> str:
    """Text of the script with the scenario's arguments. NotYet, with lines, for what is not simple to change.

    First all arguments that the scenario needs are set or added, then those taken away that ask for what it does not,
    then every change is undone without which the script asks for the same.
    """
    patch = _Patch(writing, known, ScriptText(file.text, file.path))
    if not patch.differing(patch.own):
        return file.text
    edits = [*patch.processes(), *patch.wanted()]
    made, failures = patch.all_of(edits)
    for name in made.names():
        if patch.differing(made) and patch.is_removable(name):
            made, edits = patch.tried(made, edits, name)
    rest = patch.differing(made)
    if rest and failures:
        raise NotYet([problem for failure in failures for problem in failure.problems])
    aim = patch.asks(made)
    for edit in [*edits]:
        fewer = [other for other in edits if other is not edit]
        less, _ = patch.all_of(fewer)
        if aim is not None and patch.asks(less) == aim:
            edits = fewer
    return patch.all_of(edits)[0].text


@dataclass(frozen=True)
class _Patch:
    """Changes of one script (`own`), tried by reading it with them."""

    writing: Writing
    known: ScriptArguments
    own: ScriptText

    def processes(self) -> list[_Edit]:
        """Changes of the launcher's numbers, where it has them."""
        job = self.writing.job
        each, nodes = (next((name for name in names if self.own.value(name) is not None), "") for names in _PROCESSES)
        edits = [_set(name, count) for name, count in ((each, job.gpus_per_node), (nodes, job.nodes)) if name]
        if each and not nodes and job.nodes > 1:
            edits.append(lambda script: script.ahead_of(each, f"{_PROCESSES[1][0]} {job.nodes}"))
        return edits

    def wanted(self) -> list[_Edit]:
        """Changes for all arguments that the scenario writes, but stand-ins."""
        edits, given = list[_Edit](), self.known.given(self.own.text, self.own.path)
        for put in self.writing.outline.puts.values():
            if put.stand_in or not put.key.startswith("--"):
                continue
            there = [name for name in self.known.alike(put.key) if self.own.value(name) is not None]
            if any(_is_alike(given.get(name), put.value) for name in there):
                continue
            if there and not isinstance(put.value, bool):
                edits.append(_set(there[0], put.value))
            elif put.key not in there:
                edits += [_drop(name, self.known.values(name)) for name in there] + [_add(put.key, put.value)]
        return edits

    def is_removable(self, name: str) -> bool:
        """True for an argument of the training that the scenario does not write."""
        alike = self.known.alike(name)
        return bool(alike) and not any(put.key in alike for put in self.writing.outline.puts.values())

    def tried(self, made: ScriptText, edits: list[_Edit], name: str) -> tuple[ScriptText, list[_Edit]]:
        """The script without an argument, if fewer keys then differ; and the changes so far."""
        further = [*edits, _drop(name, self.known.values(name))]
        less, _ = self.all_of(further)
        return (less, further) if len(self.differing(less)) < len(self.differing(made)) else (made, edits)

    def all_of(self, edits: Sequence[_Edit]) -> tuple[ScriptText, list[NotYet]]:
        """The script with all changes that are simple, and what is said of the others."""
        made, failures = self.own, list[NotYet]()
        for edit in edits:
            try:
                made = edit(made)
            except NotYet as failure:
                failures.append(failure)
        return made, failures

    def asks(self, script: ScriptText) -> tuple[Any, ...] | None:
        """Scenario that the script is read as; None if it is not read."""
        try:
            imported, asked = self.writing.read_back(self.writing.recipe(script.text))
            made = settled(parse_scenario(imported.document()))
        except RankscopeError:
            return None
        return made.values, made.fields, [one.key for one in asked]

    def differing(self, script: ScriptText) -> tuple[str, ...]:
        """Keys in which the script differs from the scenario; all that there are, if it is not read."""
        try:
            imported, _ = self.writing.read_back(self.writing.recipe(script.text))
            return self.writing.differing(settled(parse_scenario(imported.document())))
        except RankscopeError:
            return tuple(self.writing.outline.settled.values)


def _is_alike(one: Any, other: Any) -> bool:
    """True for two values that are written alike, numbers by what they are worth."""
    if isinstance(one, str) and isinstance(other, int | float) and not isinstance(other, bool):
        try:
            return float(one) == float(other)
        except ValueError:
            return False
    return one is not None and str(one) == str(other)


def _set(name: str, value: Any) -> _Edit:
    return lambda script: script if script.value(name) == str(value) else script.with_value(name, value)


def _add(name: str, value: Any) -> _Edit:
    return lambda script: script.with_argument(name, value)


def _drop(name: str, values: str) -> _Edit:
    return lambda script: script.without(name, values=values)

