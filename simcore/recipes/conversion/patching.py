"""A recipe of the user's, changed as little as a scenario needs; what it does not say stays, with comments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simcore.errors import NotYet, Problem, RankscopeError
from simcore.inputs.dump import patched_yaml
from simcore.inputs.scenario import parse_scenario
from simcore.inputs.yaml_parser import KeyPath
from simcore.recipes.conversion.writing import Writing
from simcore.recipes.launch.arguments import Override
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.settled import settled

__all__ = ["patched"]


def patched(writing: Writing, file: RecipeFile) -> str:
    """Text of the recipe with the scenario's keys. NotYet where recipes are written whole, or have several files.

    First all keys of the outline are set; each without which the recipe asks for the same is left as it was. Then keys
    are removed that ask for what the scenario does not. A stand-in is not written where the recipe has its block, or
    the block that it goes with.
    """
    if not writing.writer.patches or writing.beside:
        raise NotYet(Problem(file.path, f"not yet: --into: recipes of {writing.format.name} are written whole"))
    patch = _Patch(writing, file)
    wanted: dict[KeyPath, Any] = {tuple(put.key.split(".")): put.value for put in writing.outline.puts.values()
              if not (put.stand_in and {put.key.partition(".")[0], put.beside} & {*file.document.data})}
    values = patch.least(wanted)
    dropped = patch.dropped(values)
    return patched_yaml(file.text, values, dropped)


@dataclass(frozen=True)
class _Patch:
    """Changes of one file, tried by reading it with them."""

    writing: Writing
    file: RecipeFile

    def least(self, wanted: Mapping[KeyPath, Any]) -> dict[KeyPath, Any]:
        """Those of the values without which the recipe asks for something else; all, if it is not read with them."""
        values = dict(wanted)
        aim = self.asks(values)
        if aim is None:
            return values
        for path in wanted:
            fewer = {other: value for other, value in values.items() if other != path}
            if self.asks(fewer) == aim:
                values = fewer
        return values

    def dropped(self, values: Mapping[KeyPath, Any]) -> list[KeyPath]:
        """Keys to remove, whole blocks first, as long as fewer keys differ from the scenario's."""
        found, differing = list[KeyPath](), self.differing(values, ())
        for path in self.removable(values):
            if not differing:
                break
            if any(path[:len(other)] == other for other in found):
                continue
            fewer = self.differing(values, [*found, path])
            if len(fewer) < len(differing):
                found, differing = [*found, path], fewer
        return found

    def removable(self, values: Mapping[KeyPath, Any]) -> list[KeyPath]:
        """Paths of blocks and keys that give the scenario something, and that the scenario does not write."""
        try:
            imported, _ = self.writing.read_back(self.changed(values, ()))
        except RankscopeError:
            return []
        used = [tuple(key.split(".")) for key in imported.used]
        kept = {path[:1] for path in values} | {tuple(put.split("."))[:1] for put in self.writing.outline.puts}
        blocks = dict.fromkeys(path[:1] for path in used if path[:1] not in kept)
        written = {tuple(put.split(".")) for put in self.writing.outline.puts}
        return [path for path in (*blocks, *(path for path in used if path not in written)) if self.has(path)]

    def has(self, path: KeyPath) -> bool:
        """True if the user's file has the key."""
        inner: Any = self.file.document.data
        for key in path:
            if not isinstance(inner, dict) or key not in inner:
                return False
            inner = inner[key]
        return True

    def asks(self, values: Mapping[KeyPath, Any]) -> tuple[Any, ...] | None:
        """Scenario that the recipe is read as with values set; None if it is not read."""
        try:
            imported, asked = self.writing.read_back(self.changed(values, ()))
            made = settled(parse_scenario(imported.document()))
        except RankscopeError:
            return None
        return made.values, made.fields, [one.key for one in asked]

    def differing(self, values: Mapping[KeyPath, Any], dropped: Iterable[KeyPath]) -> tuple[str, ...]:
        """Keys in which the recipe then differs from the scenario; all that there are, if it is not read."""
        try:
            imported, _ = self.writing.read_back(self.changed(values, dropped))
            return self.writing.differing(settled(parse_scenario(imported.document())))
        except RankscopeError:
            return tuple(self.writing.outline.settled.values)

    def changed(self, values: Mapping[KeyPath, Any], dropped: Iterable[KeyPath]) -> RecipeFile:
        """The user's recipe with values set and keys removed."""
        away = [*dropped]
        text = patched_yaml(self.file.text, {}, away) if away else self.file.text
        return self.writing.recipe(text, tuple(Override(path, value, "the scenario") for path, value in values.items()))
