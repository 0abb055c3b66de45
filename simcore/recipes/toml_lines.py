"""Lines of the tables and keys of a TOML text, which the standard library's reader does not tell."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from simcore.inputs.yaml_parser import KeyPath

__all__ = ["toml_lines"]

_PART: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|"
    r"#[^\n]*|[\[\]{}\n]|[^\[\]{}\n\"'#]+", re.DOTALL)
"""Strings, comments, brackets, ends of lines, and the text between them."""
_KEY: Final = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS: Final = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER: Final = re.compile(rf"(\[\[?)[ \t]*({_KEYS})[ \t]*\]")
_ASSIGNED: Final = re.compile(rf"({_KEYS})[ \t]*=")


def toml_lines(text: str) -> dict[KeyPath, int]:
    """Line (from 1) of every table and of every key that begins a line, by path; `text` is valid TOML.

    Keys of inline tables have none: they stand where the key before them does.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    tables: Counter[KeyPath] = Counter()
    for line, statement in _statements(text):
        if header := _HEADER.match(statement):
            table = _within(_keys(header[2]), tables)
            if header[1] == "[[":
                tables[table] += 1
                table = (*table, tables[table] - 1)
            found = table
        elif assigned := _ASSIGNED.match(statement):
            found = (*table, *_keys(assigned[1]))
        else:
            continue
        for length in range(1, len(found) + 1):
            lines.setdefault(found[:length], line)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each header and each `key = value`, a value of several lines as one; comments are left out."""
    parts: list[str] = []
    line, first, depth = 1, 1, 0
    for part in (found[0] for found in _PART.finditer(text)):
        if part == "\n" and depth == 0:
            yield first, "".join(parts).strip()
            parts, first = [], line + 1
        elif not part.startswith("#"):
            parts.append(part)
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(part, 0)
        line += part.count("\n")
    yield first, "".join(parts).strip()


def _keys(text: str) -> KeyPath:
    """Names of a dotted key, quotes taken off."""
    return tuple(next(iter(tomllib.loads(f"{name} = 0"))) if name[0] in "\"'" else name
                 for name in re.findall(_KEY, text))


def _within(path: KeyPath, tables: Counter[KeyPath]) -> KeyPath:
    """Path of a header: below an array of tables it means the last of them."""
    found: KeyPath = ()
    for number, key in enumerate(path, 1):
        found = (*found, key)
        if number < len(path) and tables[found]:
            found = (*found, tables[found] - 1)
    return found
