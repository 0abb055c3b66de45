"""Conditions of a shell script: `[ ]`, `test` and `[[ ]]`, as far as the script alone decides them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from simcore.recipes.shell.expansion import Variables
from simcore.recipes.shell.pieces import Piece, groups, known_text, pattern_of
from simcore.recipes.shell.tokens import Token, tokens_of

__all__ = ["holds", "matches"]

_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge}
_LONGEST: Final = 200
_MOST: Final = 100
"""Parts of a test."""
_PLAIN: Final = re.compile(r"[\w\s.,:/@^$|()*+?\[\]-]*")
"""Patterns of `=~` that mean the same in Python, and are not slow."""


def holds(tokens: Sequence[Token], variables: Variables) -> bool | None:
    """Truth of `[ ]`, `test`, `[[ ]]`; None if more than the script decides it."""
    first = tokens[0]
    if first.kind == "condition":
        inner = tokens_of(f" {first.text}", variables.path, first.line)
        return _Test([token for token in inner if token.text != "\n"], variables, is_new=True).truth()
    return _Test(list(tokens[1:-1] if first.text == "[" else tokens[1:]), variables, is_new=False).truth()


def matches(text: str | None, pattern: str | None) -> bool | None:
    """True if a text fits an arm of `case`; None if either is not known."""
    return None if text is None or pattern is None else fnmatchcase(text, pattern)


@dataclass
class _Test:
    """Words of a test; `is_new`: of `[[ ]]`, where variables are not split and the right side is a pattern."""

    tokens: list[Token]
    variables: Variables
    is_new: bool
    at: int = 0
    depth: int = 0

    def truth(self) -> bool | None:
        found = self._any()
        return found if self.at >= len(self.tokens) else None

    def _any(self) -> bool | None:
        results = [self._all()]
        while self._next("||" if self.is_new else "-o"):
            results.append(self._all())
        return True if True in results else None if None in results else False

    def _all(self) -> bool | None:
        results = [self._one()]
        while self._next("&&" if self.is_new else "-a"):
            results.append(self._one())
        return False if False in results else None if None in results else True

    def _one(self) -> bool | None:
        self.depth += 1
        if self.depth > _MOST:
            return None
        if self._next("!"):
            inner = self._one()
            return None if inner is None else not inner
        if self._next("("):
            inner = self._any()
            return inner if self._next(")") else None
        start = self.at
        while self.at < len(self.tokens) and self.tokens[self.at].text not in ("&&", "||", "-a", "-o", ")"):
            self.at += 1
        return self._single(self.tokens[start:self.at])

    def _next(self, text: str) -> bool:
        is_next = self.at < len(self.tokens) and self.tokens[self.at].text == text
        self.at += is_next
        return is_next

    def _single(self, tokens: Sequence[Token]) -> bool | None:
        if any(token.kind != "word" for token in tokens):
            return None
        words = [self.variables.pieces(token.text, token.line) for token in tokens]
        if not self.is_new:  # what is empty and not in quotes is no word
            parted = [groups(pieces) for pieces in words]
            if any(len(parts) > 1 for parts in parted):
                return None
            kept = [number for number, parts in enumerate(parted) if parts and not _is_nothing(parts[0])]
            words, tokens = [words[number] for number in kept], [tokens[number] for number in kept]
        if len(words) == 1:
            text = known_text(words[0])
            return None if text is None else bool(text)
        if len(words) == 2:
            return self._of_one(tokens[0].text, words[1])
        return self._compared(words[0], tokens[1].text, words[2]) if len(words) == 3 else None

    def _of_one(self, sign: str, pieces: list[Piece]) -> bool | None:
        text = known_text(pieces)
        if sign in ("-z", "-n"):
            return None if text is None else bool(text) == (sign == "-n")
        if sign == "-v" and text:
            return True if text in self.variables.values else None if self.variables.sourced else False
        if sign in ("-f", "-e", "-r", "-s") and pieces and pieces[-1].text.rpartition("/")[2] in self.variables.beside:
            return True
        return None

    def _compared(self, left: Sequence[Piece], sign: str, right: Sequence[Piece]) -> bool | None:
        text, other = known_text(left), known_text(right)
        if text is None or other is None:
            return None
        if sign in ("=", "==", "!="):
            pattern = (pattern_of(right) or "") if self.is_new else ""
            return (fnmatchcase(text, pattern) if self.is_new else text == other) == (sign != "!=")
        if sign == "=~" and self.is_new and len(text) <= _LONGEST and _PLAIN.fullmatch(other):
            return _found(other, text)
        if sign in _NUMBERS and all(re.fullmatch(r"-?[0-9]{1,18}", one) for one in (text, other)):
            return _NUMBERS[sign](int(text), int(other))
        return None


def _is_nothing(pieces: Sequence[Piece]) -> bool:
    return all(piece.is_unset and not piece.is_quoted for piece in pieces)


def _found(pattern: str, text: str) -> bool | None:
    if len(pattern) > _LONGEST or pattern.count("*") + pattern.count("+") > 3:
        return None
    try:
        return bool(re.search(pattern, text))
    except re.error:
        return None
