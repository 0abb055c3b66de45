r"""References in a recipe's values, in OmegaConf's words: `${a.b}`, `${.b}`, `${mul:2,${a}}`.

Own code and not omegaconf: that keeps no lines, which each key of an imported scenario has; it expands references
without a limit (nine levels of lists of nine take seconds); and it reads the environment (`oc.env`) unless its
resolvers are taken out one by one. Here functions are known by name, nothing is executed, no environment is read.

Grammar (omegaconf 2.4 docs, "Usage"; grammar/OmegaConfGrammarParser.g4): `${key.key[0]}` is a path from the top,
`${.key}` one from the mapping that the value stands in, each further dot one level up. `${name:word,word}` is a
function, words may have references. `\${` is text. A value that is one reference alone keeps the type of what it leads
to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.block import shorten
from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import MAX_NODES, KeyPath, dotted
from simcore.recipes.inheritance.reference_syntax import Call, Part, Path, parts_of

__all__ = ["ARITHMETIC", "resolved"]

_MOST_REFERENCES: Final = 5_000
_MOST_TEXT: Final = 2**20
"""Characters of all texts that are put together."""
_MOST_LEVELS: Final = 72
"""References and mappings in one another."""
_LARGEST: Final = 2**63
_ABSENT: Final = object()
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]{1,18}|[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,3})?)")
_WORDS: Final[Mapping[str, object]] = {"null": None, "true": True, "True": True, "false": False, "False": False}
_SELECT: Final = "oc.select"

Function = Callable[[float, float], float]
ARITHMETIC: Final[Mapping[str, Function]] = {
    "add": lambda left, right: left + right, "mul": lambda left, right: left * right,
    "div": lambda left, right: left / right, "max": max}
"""Functions of two numbers that NeMo RL registers (7ea279ab nemo_rl/utils/config.py register_omegaconf_resolvers)."""


def resolved(document: Document, functions: Mapping[str, Function],
             is_idle: Callable[[KeyPath], bool] = lambda path: False) -> tuple[Document, tuple[Problem, ...]]:
    """Copy of a document with the values that its references lead to, each at its own place, and problems.

    `functions`: those of two numbers, beside `oc.select`. A reference that leads nowhere, or asks for another function
    (`oc.env`), stays as it is written, and is a problem at its line unless `is_idle` is True for the path of its key:
    that of a key on which nothing depends.

    InputError, at its line, for a circle, and for what passes the limits of this module.
    """
    reading = _Reading(document, functions, is_idle)
    data = reading.value(document.data, ())
    return replace(document, data=data), tuple(reading.problems)


class _Refused(Exception):
    """Raised where a reference cannot be followed, with the reason."""


@dataclass
class _Reading:
    """State while a document is read: texts that are known, with the values in them, and those under way."""

    document: Document
    functions: Mapping[str, Function]
    is_idle: Callable[[KeyPath], bool]
    problems: list[Problem] = field(default_factory=list)
    known: dict[KeyPath, tuple[Any, int]] = field(default_factory=dict)
    under_way: list[KeyPath] = field(default_factory=list)
    num_references: int = 0
    num_values: int = 0
    num_characters: int = 0
    levels: int = 0

    def value(self, raw: Any, path: KeyPath) -> Any:
        """Value of what stands at `path`, with all that is inside it."""
        self._count(path, 1)
        self.levels += 1
        self._expect(path, self.levels <= _MOST_LEVELS, f"more than {_MOST_LEVELS} references and mappings in one "
                                                        "another")
        if isinstance(raw, dict):
            found: Any = {key: self.value(inner, (*path, key)) for key, inner in raw.items()}
        elif isinstance(raw, list):
            found = [self.value(inner, (*path, number)) for number, inner in enumerate(raw)]
        elif isinstance(raw, str) and "${" in raw:
            found = self._text(raw, path)
        else:
            found = raw
        self.levels -= 1
        return found

    def _text(self, raw: str, path: KeyPath) -> Any:
        """Value of a text with references, which is worked out once."""
        if path in self.known:
            found, size = self.known[path]
            self._count(path, size)
            return found
        if path in self.under_way:
            around = [*self.under_way[self.under_way.index(path):], path]
            shown = " -> ".join(f"{dotted(one)} ({self.document.where(one)})" for one in around)
            raise InputError(Problem(self.document.where(path), f"references in a circle: {shown}"[:1000]))
        self.under_way.append(path)
        levels, before = self.levels, self.num_values
        try:
            found = self._together(parts_of(raw), path)
        except (_Refused, ValueError) as reason:
            self.levels, found = levels, raw
            if not self.is_idle(path):
                self.problems.append(Problem(self.document.where(path), f"{dotted(path)}: {shorten(raw)}: {reason}"))
        self.under_way.pop()
        self.known[path] = found, self.num_values - before
        return found

    def _count(self, path: KeyPath, size: int) -> None:
        """Counts values of the document as it is with all references expanded."""
        self.num_values += size
        self._expect(path, self.num_values <= 2 * MAX_NODES, f"references that expand to more than {2 * MAX_NODES:,} "
                                                             "values")

    def _together(self, parts: Sequence[Part], path: KeyPath) -> Any:
        values = [part if isinstance(part, str) else self._followed(part, path) for part in parts]
        if len(values) == 1:
            return values[0]
        if any(isinstance(value, dict | list) for value in values):
            raise _Refused("a mapping or list within a text")
        text = "".join(map(str, values))
        self.num_characters += len(text)
        self._expect(path, self.num_characters <= _MOST_TEXT, f"references that expand to more than {_MOST_TEXT:,} "
                                                              "characters")
        return text

    def _followed(self, part: Path | Call, path: KeyPath) -> Any:
        self.num_references += 1
        self._expect(path, self.num_references <= _MOST_REFERENCES, f"more than {_MOST_REFERENCES:,} references")
        if isinstance(part, Path):
            key = self._together(part.key, path)
            found = self._at(str(key), path)
            if found is _ABSENT:
                raise _Refused(f"there is no key {key!s:.100}")
            if isinstance(found, str) and "${" in found:
                raise _Refused(f"{key!s:.100} is {shorten(found)}")
            return found
        if part.name == _SELECT:
            return self._selected(part, path)
        if part.name not in self.functions:
            known = ", ".join((*self.functions, _SELECT))
            raise _Refused(f"the function {part.name} is not read (known: {known}): nothing is executed, and no "
                           "environment is read")
        numbers = [self._number(self._together(word, path)) for word in part.words]
        if len(numbers) != 2:
            raise _Refused(f"{part.name} takes two numbers, got {len(numbers)}")
        return _computed(part.name, self.functions[part.name], numbers[0], numbers[1])

    def _selected(self, part: Call, path: KeyPath) -> Any:
        """Value of `${oc.select:key,default}`: that of the key, or the default where the key is missing."""
        words = [self._together(word, path) for word in part.words]
        if not 1 <= len(words) <= 2:
            raise _Refused(f"{_SELECT} takes a key and a default, got {len(words)} words")
        found = self._at(str(words[0]), path)
        return (_plain(words[1]) if len(words) == 2 else None) if found is _ABSENT else found

    def _at(self, key: str, path: KeyPath) -> Any:
        """Value of a key as a reference at `path` names it; `_ABSENT` if there is none."""
        names = key.lstrip(".")
        dots = len(key) - len(names)
        if dots > len(path):
            raise _Refused(f"{key!s:.100} leads above the top")
        inner: Any = self.document.data
        at = (*path[:len(path) - dots], *re.findall(r"[^.\[\]]+", names)) if dots else tuple(
            re.findall(r"[^.\[\]]+", names))
        steps: list[str | int] = []
        for step in at:
            if isinstance(inner, str) and "${" in inner:
                inner = self._text(inner, tuple(steps))
            if isinstance(inner, list) and str(step).isdigit() and int(step) < len(inner):
                steps.append(int(step))
                inner = inner[int(step)]
            elif isinstance(inner, dict) and step in inner:
                steps.append(step)
                inner = inner[step]
            else:
                return _ABSENT
        return self.value(inner, tuple(steps))

    def _number(self, value: Any) -> float:
        plain = _plain(value)
        if isinstance(plain, bool) or not isinstance(plain, int | float):
            raise _Refused(f"{shorten(value)} is no number")
        return plain

    def _expect(self, path: KeyPath, is_within: bool, what: str) -> None:  # noqa: FBT001 - an assertion
        if not is_within:
            raise InputError(Problem(self.document.where(path), f"{what}: not read"))


def _plain(value: Any) -> Any:
    """Value of a function's word: numbers, true, false and null have their own types."""
    if not isinstance(value, str):
        return value
    if value in _WORDS:
        return _WORDS[value]
    if _NUMBER.fullmatch(value):
        return float(value) if re.search(r"[.eE]", value) else int(value)
    return value


def _computed(name: str, function: Function, left: float, right: float) -> float:
    try:
        found = function(left, right)
    except (ArithmeticError, ValueError) as error:
        raise _Refused(f"{name}: {error}") from None
    if abs(found) >= _LARGEST:
        raise _Refused(f"{name}: the result is beyond 2**63")
    return found
