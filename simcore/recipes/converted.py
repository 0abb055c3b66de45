"""Result of writing a scenario as a recipe: the recipe, its launch command, and what it does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simcore.errors import NotYet, Problem
from simcore.recipes.imported import Left

__all__ = ["Converted"]


@dataclass(frozen=True, slots=True)
class Converted:
    """A scenario as a recipe.

    `format`: name of its format; `suffix`: ending of its file; `text`: the recipe; `launch`: lines of shell that start
    it, "" where the recipe is such a script itself. `left`: keys of the scenario that the recipe does not have, with
    the reason. `refused`: problems of keys that it cannot say; with any of these it is not the scenario's recipe.
    `beside`: texts of the files that belong to it, by their names; `file`: its own name in these and in `launch`.
    """

    format: str
    suffix: str
    text: str
    launch: str
    left: tuple[Left, ...] = ()
    refused: tuple[Problem, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    @property
    def has_comments(self) -> bool:
        """True if the recipe's file may have comments."""
        return self.suffix != ".json"

    def expect_complete(self) -> None:
        """Raises NotYet with every key that the recipe cannot say."""
        if self.refused:
            raise NotYet(self.refused)

    def without_refused(self) -> Converted:
        """Copy in which what the recipe cannot say is listed instead of refused."""
        said = (Left("unknown", one.where, "", "", f"{one.message}; left out by --loose") for one in self.refused)
        return replace(self, left=(*self.left, *said), refused=())
