"""Values after statements that run, or do not run, by what more than the script decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simcore.recipes.shell.pieces import Piece, unknown
from simcore.recipes.shell.values import Values

__all__ = ["joined"]

_Values = Mapping[str, tuple[Piece, ...]]
_Value = tuple[Piece, ...]


def joined(paths: Sequence[_Values], variables: Values, line: int, reason: str) -> dict[str, _Value]:
    """Variables where several ways through a script come together again.

    A value that all ways give alike stays. Of others the beginning that they share stays, and behind it stands what
    each way adds, as not known: `reason`, and the lines that set it; a value that is no list of arguments is one such
    word. What the user says of a variable (`variables.given`) answers.
    """
    found: dict[str, _Value] = {}
    for name in dict.fromkeys(name for path in paths for name in path):
        values = [path.get(name) for path in paths]
        first = values[0]
        if first is not None and all(one is not None and _alike(first, one) for one in values):
            found[name] = first
        elif name in variables.given:
            found[name] = (Piece(variables.given[name], line),)
        else:
            found[name] = _open(name, values, line, reason)
    return found


def _alike(one: _Value, other: _Value) -> bool:
    return one is other or _told(one) == _told(other)


def _told(value: _Value) -> list[tuple[str, str, bool]]:
    """Value without its lines, texts that follow each other as one; what is not known is like itself alone."""
    found: list[tuple[str, str, bool]] = []
    for piece in value:
        if found and not piece.unknown and not piece.is_break and not found[-1][1] and not found[-1][2]:
            found[-1] = (found[-1][0] + piece.text, "", False)
        else:
            found.append((piece.text, piece.unknown and f"{piece.unknown} {piece.line}", piece.is_break))
    return found


def _open(name: str, values: Sequence[_Value | None], line: int, reason: str) -> _Value:
    """Value that differs between the ways; None for a way that does not set it."""
    kept = _shared([value or () for value in values])
    added = [(value or ())[len(kept):] for value in values]
    lines = sorted({part[0].line for part in added if part})
    answers = "" if "[" in name else f"; --set env.{name}=VALUE answers"
    told = f"{reason} ({_set_by(lines)} ${name}{answers})"
    if not any(_is_list(part) for part in added):
        return (*kept, unknown(f"${name}", lines[0] if lines else line, told))
    between = any(piece.is_break for part in (kept, *added) for piece in part)
    further: list[Piece] = []
    for part in added:
        if part:
            further += [replace(piece, unknown=piece.unknown or told, is_unset=False) if not piece.is_break else piece
                        for piece in part]
            further += [] if between else [Piece(" ", part[-1].line)]
    return (*kept, *further)


def _shared(values: Sequence[_Value]) -> _Value:
    """Pieces that all values begin with, up to the end of a word."""
    number = 0
    while all(number < len(value) for value in values) and len({value[number] for value in values}) == 1:
        number += 1
    while number and not (_ends(values[0][number - 1]) or all(_begins(value, number) for value in values)):
        number -= 1
    return values[0][:number]


def _ends(piece: Piece) -> bool:
    return piece.is_break or (not piece.is_quoted and not piece.unknown and piece.text[-1:].isspace())


def _begins(value: _Value, number: int) -> bool:
    """True where a value goes on with a blank, or ends."""
    return number >= len(value) or value[number].is_break or value[number].text[:1].isspace()


def _is_list(value: _Value) -> bool:
    """True for a value that has arguments: options, or keys with values."""
    text = "".join("\n" if piece.is_break else piece.text for piece in value)
    return any(piece.is_break for piece in value) or bool(re.search(r"(?:^|\s)-{1,2}[A-Za-z]|\w=", text))


def _set_by(lines: Sequence[int]) -> str:
    if len(lines) < 2:
        return f"line {lines[0]} sets" if lines else "nothing sets"
    return f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]} set"
