"""The reader of a recipe: hands out values by key, and remembers which keys were asked for and what became of each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Any, Final, Generic, TypeVar

from simcore.errors import Problem
from simcore.inputs.block import shorten
from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import KeyPath, dotted

__all__ = ["Reader", "Taken"]

T = TypeVar("T")
_ABSENT: Final = object()
_TRUTHS: Final = {**dict.fromkeys(("true", "yes", "on", "1"), True),
                  **dict.fromkeys(("false", "no", "off", "0"), False)}
_ALIKE: Final = 0.85
"""Share of letters in common from which a key counts as another one misspelt."""


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """A value of a recipe: `path` of its key, `where` it stands (`file:line`), and the reader that handed it out."""

    value: T
    path: KeyPath
    where: str
    reader: Reader

    @property
    def key(self) -> str:
        """Dotted key, such as `distributed.ep_size`."""
        return dotted(self.path)


@dataclass
class Reader:
    """Reader of one document of a recipe.

    `nulls`: words that the format reads as null. Every value that is handed out is a `Taken`, and the draft must say
    what became of it; `untouched` are the keys that were never asked for. A value of a wrong type is a problem in
    `problems`, and None is handed out in its place. `fields`: keys that the format has at the top, if they are known: a
    pattern fits no other, but for `*`. `older`: name that the document has for a key of the format, where an older
    release called it otherwise.
    """

    document: Document
    nulls: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()
    older: Mapping[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _seen: set[KeyPath] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _handed: dict[KeyPath, Taken[Any]] = field(default_factory=dict)
    _beside: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    # ---- values ------------------------------------------------------------------------------------------------
    def take(self, key: str) -> Taken[Any] | None:
        """Value of any kind; None if the key is missing or null. A null counts as taken, and as saying nothing."""
        found = self._find(key)
        return None if found is None else self._of(found, found.value)

    def integer(self, key: str) -> Taken[int] | None:
        """A whole number; one that is written as text or with a zero fraction (`8.0`) counts as well."""
        return self._number(key, "a whole number", lambda value: float(value).is_integer(), int)

    def number(self, key: str) -> Taken[float] | None:
        """A number; one that is written as text counts as well."""
        return self._number(key, "a number", lambda value: True, float)

    def flag(self, key: str) -> Taken[bool] | None:
        """True or false; words count as well, also those of YAML 1.1, by which upstream's loaders read, and 0 and 1."""
        found = self._find(key)
        if found is None:
            return None
        value = _TRUTHS.get(str(found.value).lower())
        if value is None:
            self._wrong(found, "true or false")
            return None
        return self._of(found, value)

    def text(self, key: str) -> Taken[str] | None:
        """A text. One with a reference or a command in it (`${...}`, `$(...)`) is a problem: nothing is resolved."""
        found = self._find(key)
        if found is None:
            return None
        if isinstance(found.value, str) and ("${" in found.value or "$(" in found.value):
            self._wrong(found, "a plain text, in which nothing is to be resolved")
            return None
        if isinstance(found.value, str):
            return self._of(found, found.value)
        self._wrong(found, "text")
        return None

    def words(self, key: str) -> Taken[list[str]] | None:
        """A list of texts; a single text is a list of one."""
        found = self._find(key)
        if found is None:
            return None
        value = [found.value] if isinstance(found.value, str) else found.value
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return self._of(found, value)
        self._wrong(found, "text, or a list of texts")
        return None

    # ---- keys --------------------------------------------------------------------------------------------------
    def has(self, key: str) -> bool:
        """True if the recipe has the key with another value than null; it stays untouched."""
        value = self._value(self._path(key))
        return value is not _ABSENT and not self._is_null(value)

    def look(self, key: str) -> Any:
        """Value of a key as it stands, None if there is none; it stays untouched."""
        value = self._value(self._path(key))
        return None if value is _ABSENT else value

    def is_mapping(self, key: str) -> bool:
        """True if the key has keys below it; it stays untouched."""
        return isinstance(self._value(self._path(key)), dict)

    def names(self, key: str = "") -> tuple[str, ...]:
        """Names of the keys below a key (without one: of the top), in order; they stay untouched."""
        value = self._value(self._path(key)) if key else self.document.data
        return tuple(value) if isinstance(value, dict) else ()

    def matching(self, *patterns: str) -> list[Taken[Any]]:
        """Values of all untouched keys whose dotted name fits a pattern (`wandb.*`); they count as taken."""
        self._asked.update(pattern for pattern in patterns if "*" not in pattern)
        names, any_of = frozenset(patterns), _any_of(patterns)
        fields = frozenset[str]() if "*" in names else self.fields
        found = [one for name, one in self._untouched.values() if name in names or (
            any_of(name) and (not fields or name.partition(".")[0] in fields))]
        self._see(one.path for one in found)
        self._handed.update((one.path, one) for one in found)
        return found

    def unsaid(self) -> list[Taken[Any]]:
        """Values that were asked for and are null, or a word for it: the recipe says nothing by them."""
        return [one for one in self.all() if one.path in self._seen and self._is_null(one.value)]

    def all(self) -> list[Taken[Any]]:
        """All values of the document, in the order of the file; they stay untouched."""
        return [Taken(value, path, self.document.where(path), self) for path, value in _leaves(self.document.data, ())]

    def near(self, one: Taken[Any]) -> str:
        """Key that was asked for, beside an untouched one, and is spelt almost like it; "" if there is none."""
        at, point, name = one.key.rpartition(".")
        if (at, len(self._asked)) not in self._beside:
            fields = () if at else tuple(key for key in self.fields if self._value((key,)) is _ABSENT)
            self._beside[at, len(self._asked)] = sorted({*fields, *(
                key.rpartition(".")[2] for key in self._asked
                if key.rpartition(".")[0] == at and self._value(self._path(key)) is _ABSENT)})
        beside = self._beside[at, len(self._asked)]
        return "".join(f"{at}{point}{other}" for other in difflib.get_close_matches(name, beside, 1, _ALIKE))

    def handed_out(self) -> list[Taken[Any]]:
        """Values that were handed out, without those of a wrong type."""
        return list(self._handed.values())

    def untouched(self) -> list[Taken[Any]]:
        """Values that nothing has asked for yet, in the order of the file."""
        return [one for _, one in self._untouched.values()]

    # ---- inner -------------------------------------------------------------------------------------------------
    @cached_property
    def _untouched(self) -> dict[KeyPath, tuple[str, Taken[Any]]]:
        """Dotted name and value of every untouched value, by its path; what is seen is taken out."""
        return {one.path: (one.key, one) for one in self.all() if one.path not in self._seen}

    def _see(self, paths: Iterable[KeyPath]) -> None:
        for path in paths:
            self._seen.add(path)
            self._untouched.pop(path, None)

    def _find(self, key: str) -> Taken[Any] | None:
        """Value of a key, which is seen from now on; None if the recipe does not say it."""
        self._asked.add(key)
        path = self._path(key)
        value = self._value(path)
        if value is _ABSENT:
            return None
        self._see([path, *(inner for inner, _ in _leaves(value, path))])
        return None if self._is_null(value) else Taken(value, path, self.document.where(path), self)

    def _is_null(self, value: object) -> bool:
        return value is None or (isinstance(value, str) and value in self.nulls)

    def _path(self, key: str) -> KeyPath:
        return tuple(self.older.get(key, key).split("."))

    def _value(self, path: KeyPath) -> Any:
        value: Any = self.document.data
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return _ABSENT
            value = value[key]
        return value

    def _number(self, key: str, kind: str, fits: Any, read: type[Any]) -> Taken[Any] | None:
        found = self._find(key)
        if found is None:
            return None
        try:
            if isinstance(found.value, str | int | float) and not isinstance(found.value, bool) and fits(found.value):
                return self._of(found, read(float(found.value)) if isinstance(found.value, str) else read(found.value))
        except (ValueError, OverflowError):
            pass
        self._wrong(found, kind)
        return None

    def _of(self, found: Taken[Any], value: T) -> Taken[T]:
        self._handed[found.path] = taken = Taken(value, found.path, found.where, self)
        return taken

    def _wrong(self, found: Taken[Any], expected: str) -> None:
        self.problems.append(Problem(found.where, f"{found.key}: expected {expected}, got {shorten(found.value)}"))


@lru_cache
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Test whether a name fits one of the patterns."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)").match


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """(path, value) of every value that has no keys below it; a list of plain values is one value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    elif path:
        yield path, value
