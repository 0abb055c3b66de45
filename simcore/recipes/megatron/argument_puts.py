"""Arguments of Megatron-LM by the fields that they set: what argparse has by default is not written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simcore.recipes.megatron.arguments import MAIN, arguments, names_of
from simcore.recipes.outline import Outline

__all__ = ["ArgumentPuts"]



@dataclass(frozen=True, slots=True)
class ArgumentPuts:
    """Writes arguments into an outline. `version`: of Megatron; arguments that it lacks are not written."""

    outline: Outline
    version: str

    @property
    def is_main(self) -> bool:
        """True for the main branch, False for a release of core."""
        return self.version == MAIN

    def put(self, field: str, value: Any, *said: str) -> None:
        """Writes the argument that gives a field this value, unless it has it by default. `said`: scenario's keys.

        A value that no argument of the version gives is refused for the first of them.
        """
        self.outline.said.update(said)
        names = names_of((field,))
        if value is None or value == arguments()[names[0]].default:
            return
        served = [name for name in names if arguments()[name].version in ("", self._label()) and (
            not isinstance(value, bool) or arguments()[name].takes == ("true" if value else "false"))]
        if served:
            self.outline.put(served[0], value, *said)
        elif said:
            self.outline.refuse(said[0], f"{self.version} has no argument that sets {field} to {value}")

    def say(self, field: str, key: str, usual: Any) -> None:
        """Writes a field with the value of `key`; without one with `usual`, which the simulation has then."""
        given = self.outline.given(key)
        self.put(field, usual if given is None else given, key)
        if given is not None and given == usual:
            self.outline.as_without(key)

    def _label(self) -> str:
        return MAIN if self.is_main else "core 0.16.1"
