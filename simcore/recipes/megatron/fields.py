"""Fields of Megatron's configurations: what a recipe gives, or upstream's default, whatever the form of the recipe.

Arguments of Megatron-LM and the configurations of Megatron-Bridge have most fields in common, by the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from simcore.errors import Problem
from simcore.inputs.block import shorten
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken

__all__ = ["Fields", "Setting", "Writer"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Setting(Generic[T_co]):
    """Value of a field: `taken` from these keys of the recipe, or upstream's default, and then `taken` is empty."""

    name: str
    value: T_co
    taken: tuple[Taken[Any], ...] = ()


class Fields(Protocol):
    """Values of fields by name. A value that is no number, or none of the kind asked for, is a problem of the draft."""

    @property
    def release(self) -> str:
        """Release whose defaults are taken, for messages."""

    def source(self, name: str) -> str:
        """Upstream file that has a field's default."""

    def integer(self, name: str) -> Setting[int | None]:
        """A whole number, or None."""

    def number(self, name: str) -> Setting[float | None]:
        """A number, or None."""

    def flag(self, name: str) -> Setting[bool]:
        """True or false; null counts as false."""

    def text(self, name: str) -> Setting[str | None]:
        """A text, or None."""

    def words(self, name: str) -> Setting[tuple[str, ...]]:
        """A list of texts."""

    def path(self, name: str) -> Setting[str | None]:
        """A file's name, which may depend on more than the recipe says."""

    def any(self, name: str) -> Setting[Any]:
        """A value of any kind; one that is not known as a field has no default and is not given."""


@dataclass(frozen=True)
class Writer:
    """Writes keys of a scenario from fields."""

    draft: Draft
    fields: Fields

    def write(self, key: str, value: Any, *settings: Setting[Any], rule: str = "") -> None:
        """Writes a key whose value follows from fields; `rule`: how, where it is not the value of one of them."""
        taken = [one for setting in settings for one in setting.taken]
        if not taken:
            names = ", ".join(setting.name for setting in settings)
            self.draft.default(key, value, self.fields.release, f"{self.fields.source(settings[0].name)}: {names}")
        elif rule or len(taken) > 1:
            self.draft.infer(key, value, rule or " and ".join(one.key for one in taken), *taken)
        else:
            self.draft.put(key, taken[0], value)

    def write_other(self, key: str, value: Any, usual: Any, *settings: Setting[Any], rule: str = "") -> None:
        """Writes a key if its value differs from the one that the simulation has without it."""
        if value == usual:
            self.use(*settings, why=f"{key} is {shorten(usual)} without it" if usual is not None else "as without it")
        else:
            self.write(key, value, *settings, rule=rule)

    def use(self, *settings: Setting[Any], why: str = "") -> None:
        """Tells that fields decide over others, or say what the simulation has anyway; `why`: as of `Draft.use`."""
        self.draft.use(*(one for setting in settings for one in setting.taken), why=why)

    def refuse(self, message: str, *settings: Setting[Any]) -> None:
        """Refuses what fields ask for, at the line of the first that the recipe gives."""
        taken = [one for setting in settings for one in setting.taken]
        self.use(*settings)
        where, name = (taken[0].where, taken[0].key) if taken else (
            self.draft.path, f"{settings[0].name} {settings[0].value}, which is the default of {self.fields.release}")
        self.draft.refused.append(Problem(where, f"not yet: {name}: {message}"))

    def idle(self, why: str, *settings: Setting[Any]) -> None:
        """Lists keys on which nothing depends that is simulated."""
        self.draft.idle([one for setting in settings for one in setting.taken], why)

    def unmodelled(self, why: str, *settings: Setting[Any]) -> None:
        """Lists keys that change what upstream does, which the answer leaves out."""
        self.draft.unmodelled([one for setting in settings for one in setting.taken], why)
