"""Syntax of references in texts: a text becomes plain parts, paths and calls of functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Call", "Part", "Path", "parts_of"]

_MOST: Final = 16
"""References in one another, in one text."""
_NAME: Final = re.compile(r"\s*([A-Za-z_][\w.]*)\s*:")
_PLAIN: Final = re.compile(r"[^\\$,}'\"]+")


@dataclass(frozen=True, slots=True)
class Path:
    """`${key}`: the key, which may have references in it."""

    key: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """`${name:word,word}`: a function and its words, each as parts."""

    name: str
    words: tuple[tuple[Part, ...], ...]


Part = str | Path | Call


def parts_of(text: str) -> tuple[Part, ...]:
    """Parts of a text; a text without parts is one of "". ValueError for a reference that does not end."""
    parts, _ = _parts(text, 0, "", 0)
    return parts


def _parts(text: str, at: int, ends: str, depth: int) -> tuple[tuple[Part, ...], int]:
    """Parts from `at` on, up to one of the signs `ends` (to the end without any), and where they stop."""
    if depth > _MOST:
        raise ValueError(f"more than {_MOST} references in one another")
    found: list[Part] = []
    while at < len(text) and not (ends and text[at] in ends):
        if text.startswith("\\${", at):
            found.append("${")
            at += 3
        elif text.startswith("${", at):
            part, at = _reference(text, at + 2, depth)
            found.append(part)
        elif ends and text[at] in "'\"":
            end = text.find(text[at], at + 1)
            if end < 0:
                raise ValueError("a quote that does not end")
            found.append(text[at + 1:end])
            at = end + 1
        else:
            plain = _PLAIN.match(text, at)
            end = plain.end() if plain else at + 1
            found.append(text[at:end])
            at = end
    return _joined(found, is_stripped=bool(ends)), at


def _reference(text: str, at: int, depth: int) -> tuple[Path | Call, int]:
    name = _NAME.match(text, at)
    words: list[tuple[Part, ...]] = []
    at = name.end() if name else at
    while True:
        word, at = _parts(text, at, ",}" if name else "}", depth + 1)
        words.append(word)
        if at >= len(text):
            raise ValueError("a reference without its closing brace")
        at += 1
        if text[at - 1] == "}":
            return (Call(name[1], tuple(words)) if name else Path(words[0])), at


def _joined(parts: list[Part], *, is_stripped: bool) -> tuple[Part, ...]:
    """Parts with neighbouring texts as one; `is_stripped`: without blanks at both ends, as words are read."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    if is_stripped and found:
        found[0] = found[0].lstrip() if isinstance(found[0], str) else found[0]
        found[-1] = found[-1].rstrip() if isinstance(found[-1], str) else found[-1]
        found = [part for part in found if part != ""] or [""]
    return tuple(found) or ("",)
