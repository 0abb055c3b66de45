"""Parts of values while a script is read, and the words that they make up."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Piece", "Word", "first_item", "groups", "in_quotes", "is_argument", "item", "items_of", "known_text",
           "lines_of", "pattern_of", "reason_of", "sliced", "unknown", "unquoted", "word_of"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a value, on one line of the script (`line`).

    `unknown`: the reason why its text is not known, "" if it is; `text` is then what the script has there. `is_unset`:
    the reason is a variable that the script does not set. `is_break`: border between two items of an array.
    """

    text: str
    line: int
    is_quoted: bool = False
    unknown: str = ""
    is_unset: bool = False
    is_break: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command as it is started, and the line of the script that it stands on; `unknown` as in `Piece`.

    `may_hold`: it may be any words, such as arguments; not so what an environment that sets nothing leaves empty.
    `pieces`: parts of a word that is not known.
    """

    text: str
    line: int
    unknown: str = ""
    is_unset: bool = False
    may_hold: bool = False
    pieces: tuple[Piece, ...] = ()


def unknown(text: str, line: int, reason: str, *, is_quoted: bool = False) -> Piece:
    """Piece that is not known, and why."""
    return Piece(text, line, is_quoted, reason)


def is_argument(piece: Piece) -> bool:
    """True for an argument of the script, which is read as started without any."""
    return piece.unknown.startswith("argument ")


def reason_of(pieces: Sequence[Piece]) -> str:
    """Reason why a value is not known, "" if it is known or only not set."""
    return next((piece.unknown for piece in pieces if piece.unknown and not piece.is_unset), "")


def known_text(pieces: Sequence[Piece]) -> str | None:
    """Text of a value; a variable that the script does not set counts as empty; None if it is not known."""
    if reason_of(pieces):
        return None
    return "".join("" if piece.is_unset else piece.text for piece in pieces if not piece.is_break)


def pattern_of(pieces: Sequence[Piece]) -> str | None:
    """Pattern that a word is, in which only signs outside of quotes have a meaning; None if it is not known."""
    if reason_of(pieces):
        return None
    return "".join(glob.escape(piece.text) if piece.is_quoted else piece.text for piece in pieces
                   if not piece.is_break and not piece.is_unset)


def lines_of(text: str, line: int, *, is_quoted: bool = False, reason: str = "", is_unset: bool = False) -> list[Piece]:
    """One piece for each line of a text."""
    return [Piece(part, line + number, is_quoted, reason, is_unset)
            for number, part in enumerate(text.splitlines(keepends=True))]


def unquoted(value: Sequence[Piece]) -> tuple[Piece, ...]:
    """Value as it is where no quotes are around it."""
    return tuple(replace(piece, is_quoted=False) if piece.is_quoted else piece for piece in value)


def in_quotes(value: Sequence[Piece], *, joins: bool) -> list[Piece]:
    """Pieces of a value in quotes; `joins`: its items are one word with blanks between them."""
    if joins:
        value = [replace(piece, text=" ", is_break=False) if piece.is_break else piece for piece in value]
        value = value[:-1] if value and value[-1].text == " " else value
    return [piece if piece.is_break else replace(piece, is_quoted=True) for piece in value]


# ---- arrays ---------------------------------------------------------------------------------------------------------
def items_of(value: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """Items of an array, without their borders."""
    found, start = list[tuple[Piece, ...]](), 0
    for number, piece in enumerate(value):
        if piece.is_break:
            found.append(tuple(value[start:number]))
            start = number + 1
    return [*found, tuple(value[start:])] if start < len(value) else found


def first_item(value: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """First item of an array; a text as it is."""
    end = next((number for number, piece in enumerate(value) if piece.is_break), None)
    return value if end is None else value[:end]


def item(value: tuple[Piece, ...], number: int | None, index: str) -> tuple[Piece, ...]:
    """Item of an array by its number, from its end if it is negative; one that is not known if others before it are."""
    items = items_of(value)
    if number is not None and -len(items) <= number < len(items):
        place = number % len(items)
        before = items if number < 0 else items[:place + 1]
        if not any(piece.unknown and not piece.is_quoted for one in before for piece in one):
            return items[place]
    return (unknown(f"[{index}]", value[0].line if value else 1, f"item {index[:40]} of an array"),)


def sliced(value: Sequence[Piece], first: int, count: int | None) -> list[Piece] | None:
    """Items from a number on (from 0; from the end if it is negative); None if what they are is not known."""
    items = items_of(value)
    if any(piece.unknown and not piece.is_quoted for piece in value) or (count is not None and count < 0):
        return None
    start = len(items) + first if first < 0 else first
    chosen = items[start:None if count is None else start + count] if start >= 0 else []
    return [piece for one in chosen for piece in (*one, Piece("", one[0].line if one else 1, is_break=True))]


# ---- words ----------------------------------------------------------------------------------------------------------
def groups(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces of each word: words end at blanks that are not quoted, and at borders of items."""
    found, current = list[list[Piece]](), list[Piece]()
    for piece in pieces:
        is_whole = piece.is_quoted or (piece.unknown and piece.text[:1] in ("$", "`"))
        parts = [""] if piece.is_break else [piece.text] if is_whole else re.split(r"(\s+)", piece.text)
        for part in parts:
            if piece.is_break or (part.isspace() and not is_whole):
                found += [current] if current else []
                current = []
            elif part or is_whole:
                current.append(replace(piece, text=part))
    return [*found, current] if current else found


def word_of(group: Sequence[Piece]) -> Word:
    """Word that pieces are together."""
    text = "".join(piece.text for piece in group)
    reason = next((piece for piece in group if piece.unknown), None)
    if reason is None:
        return Word(text, group[0].line)
    is_empty = all(piece.is_unset or is_argument(piece) for piece in group)
    return Word(text, group[0].line, reason.unknown, reason.is_unset, not is_empty, tuple(group))
