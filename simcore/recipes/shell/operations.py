"""Operations of `${NAME...}` on a text that is known: parts cut off, replaced, taken out, in other letters."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Final

__all__ = ["operated", "split_slice"]

_LONGEST: Final = 256
"""Characters of a text that is searched."""


def operated(text: str, operation: str, pattern_of: Callable[[str], str | None],
             number_of: Callable[[str], int | None]) -> str | None:
    """Text after an operation as it stands behind the name; None for one that is not read.

    `pattern_of`: pattern of a word as written, None if not known; `number_of`: value of an expression.
    """
    if len(text) > _LONGEST:
        return None
    if operation in (",,", "^^", ",", "^"):
        change = str.lower if operation[0] == "," else str.upper
        return change(text) if len(operation) == 2 else change(text[:1]) + text[1:]
    if operation[:1] in ("%", "#"):
        sign = re.match(r"%%?|##?", operation)
        pattern = pattern_of(operation[len(sign[0]) if sign else 1:])
        return None if pattern is None or sign is None else _cut(text, sign[0], pattern)
    if operation[:1] == "/":
        return _replaced(text, operation[1:], pattern_of)
    return _sliced(text, operation[1:], number_of) if operation[:1] == ":" else None


def split_slice(inner: str) -> tuple[str, str]:
    """Offset and length of `offset:length`, "" where there is none."""
    offset, _, length = inner.partition(":")
    return offset, length


def _cut(text: str, sign: str, pattern: str) -> str:
    lengths = range(len(text) + 1) if len(sign) == 1 else range(len(text), -1, -1)
    for length in lengths:
        part = text[len(text) - length:] if sign[0] == "%" else text[:length]
        if fnmatchcase(part, pattern):
            return text[:len(text) - length] if sign[0] == "%" else text[length:]
    return text


def _replaced(text: str, inner: str, pattern_of: Callable[[str], str | None]) -> str | None:
    everywhere, where = inner[:1] == "/", inner[:1] if inner[:1] in ("#", "%") else ""
    inner = inner[1:] if everywhere or where else inner
    old, _, new = inner.partition("/")
    pattern, put = pattern_of(old), pattern_of(new)
    if not pattern or put is None or any(sign in pattern or sign in put for sign in "*?[\\&"):
        return text if pattern == "" else None
    if where == "#":
        return put + text[len(pattern):] if text.startswith(pattern) else text
    if where == "%":
        return text[:-len(pattern)] + put if text.endswith(pattern) else text
    return text.replace(pattern, put, -1 if everywhere else 1)


def _sliced(text: str, inner: str, number_of: Callable[[str], int | None]) -> str | None:
    first, length = split_slice(inner)
    offset, count = number_of(first), number_of(length) if length else len(text)
    if offset is None or count is None or count < 0:
        return None
    start = len(text) + offset if offset < 0 else offset
    return text[start:start + count] if start >= 0 else ""
