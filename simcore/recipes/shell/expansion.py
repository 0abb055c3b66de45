"""Expansion of a shell script's words: quotes, variables with their defaults, arrays, arithmetic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.arithmetic import arithmetic
from simcore.recipes.shell.tokens import Token

__all__ = ["Piece", "Variables", "Word"]

_MOST: Final = 2**18
"""Characters and pieces of all expansions of a script together, counting a piece as `_WEIGHT` characters."""
_WEIGHT: Final = 16
_MAX_DEPTH: Final = 32
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_NO_WORD: Final = re.compile(r"\$@|\$\{(@|\w+\[@\])(:[0-9]+)?\}")
"""Expansions that are no word, even in quotes, where they have no items."""
_SPECIAL: Final = "@*#?$!-0123456789"


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
    """

    text: str
    line: int
    unknown: str = ""
    is_unset: bool = False
    may_hold: bool = False


@dataclass
class Variables:
    """Variables of a script while it is read: texts and arrays by name, both as pieces.

    `path`: name of the script in messages. `arguments`: items of `$@`, as pieces of an array; None for the script's
    own, of which nothing is known. `sourced`: line of the first file that the script sources, 0 for none.
    """

    path: str
    values: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    arguments: tuple[tuple[Piece, ...], ...] | None = None
    sourced: int = 0
    spent: int = 0

    # ---- words -------------------------------------------------------------------------------------------------
    def words(self, tokens: Sequence[Token]) -> list[Word]:
        """Words of a command, split at blanks as a shell splits them."""
        return [_word(group, is_sourced=self.sourced > 0) for token in tokens
                for group in _groups(self.pieces(token.text, token.line))]

    def given_to(self, tokens: Sequence[Token]) -> tuple[tuple[Piece, ...], ...]:
        """Items of `$@` of a function that is called with these words; what nothing sets is no item."""
        groups = [group for token in tokens for group in _groups(self.pieces(token.text, token.line))]
        return tuple(tuple(group) for group in groups
                     if self.sourced or not all(piece.is_unset and not piece.is_quoted for piece in group))

    def items(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """Pieces of an array with these words, a border after each."""
        return tuple(piece for token in tokens for group in _groups(self.pieces(token.text, token.line))
                     for piece in (*group, Piece("", group[0].line, is_break=True)))

    def pieces(self, raw: str, line: int, *, is_quoted: bool = False, depth: int = 0) -> list[Piece]:
        """Pieces of a word as it is written, without its quotes."""
        found, at = list[Piece](), 0
        if depth > _MAX_DEPTH:
            raise InputError(Problem(f"{self.path}:{line}", f"more than {_MAX_DEPTH} expansions in one another"))
        while at < len(raw):
            start, at = at, self._pass(raw, at, line, found, is_quoted=is_quoted, depth=depth)
            line += raw.count("\n", start, at)
        self._spend(found, line)
        return found

    def _spend(self, pieces: Sequence[Piece], line: int) -> None:
        """Counts what a word expands to; InputError for a script that expands to too much."""
        self.spent += sum(len(piece.text) + _WEIGHT for piece in pieces)
        if self.spent > _MOST:
            raise InputError(Problem(f"{self.path}:{line}", f"words that expand to more than {_MOST:,} characters"))

    def _pass(self, raw: str, at: int, line: int, found: list[Piece], *, is_quoted: bool, depth: int) -> int:
        """Adds the pieces of the sign, quote or expansion at `at`; returns where the next one begins."""
        sign = raw[at]
        if sign == "\\":
            following = raw[at + 1:at + 2]
            if following != "\n":
                keeps = is_quoted and following not in ("$", "`", '"', "\\")
                found.append(Piece(("\\" if keeps else "") + following, line, is_quoted=True))
            return at + 2
        if sign == "'" and not is_quoted:
            end = raw.index("'", at + 1)
            found += _lines(raw[at + 1:end], line, is_quoted=True) or [Piece("", line, is_quoted=True)]
            return end + 1
        if sign == '"':
            end = _closing(raw, at, '"')
            inner = self.pieces(raw[at + 1:end], line, is_quoted=True, depth=depth + 1)
            found += inner or ([] if _NO_WORD.fullmatch(raw, at + 1, end) else [Piece("", line, is_quoted=True)])
            return end + 1
        if sign == "`":
            end = raw.find("`", at + 1)
            end = len(raw) - 1 if end < 0 else end
            found.append(_unknown(raw[at:end + 1], line, "the output of a command", is_quoted=is_quoted))
            return end + 1
        if sign == "$":
            return self._dollar(raw, at, line, found, is_quoted=is_quoted, depth=depth)
        plain = re.compile(r"[^\\'\"`$]+" if not is_quoted else r"[^\\\"`$]+").match(raw, at)
        end = plain.end() if plain else at + 1
        found += _lines(raw[at:end], line, is_quoted=is_quoted)
        return end

    # ---- $ -----------------------------------------------------------------------------------------------------
    def _dollar(self, raw: str, at: int, line: int, found: list[Piece], *, is_quoted: bool, depth: int) -> int:
        rest = raw[at + 1:at + 3]
        if rest == "((":
            end = _closing(raw, at + 1, ")")
            found.append(self._computed(raw[at:end + 1], line, is_quoted=is_quoted, depth=depth))
            return end + 1
        if rest[:1] == "(":
            end = _closing(raw, at + 1, ")")
            found.append(_unknown(raw[at:end + 1], line, "the output of a command", is_quoted=is_quoted))
            return end + 1
        if rest[:1] == "{":
            end = _closing(raw, at + 1, "}")
            inner = self._braced(raw[at + 2:end], line, is_quoted=is_quoted, depth=depth + 1)
            joins = re.match(r"\*|\w+\[\*\]", raw[at + 2:end]) is not None
            found += _in_quotes(inner, joins=joins) if is_quoted else inner
            return end + 1
        if rest[:1] == "'":
            end = raw.find("'", at + 2)
            found += _lines(raw[at + 2:end], line, is_quoted=True)
            return end + 1
        name = _NAME.match(raw, at + 1)
        if (name is None and rest[:1] not in _SPECIAL) or not rest:
            found.append(Piece("$", line, is_quoted=True))
            return at + 1
        text = name[0] if name else rest[0]
        value = self.value(text, line)
        value = value if text in ("@", "*") else _first(value)
        found += _in_quotes(value, joins=text == "*") if is_quoted else value
        return at + 1 + len(text)

    def value(self, name: str, line: int) -> tuple[Piece, ...]:
        """Value of a variable; one piece that says so for a variable that the script does not set."""
        if name in self.values:
            self._spend(self.values[name], line)
            return _unquoted(self.values[name])
        if name in ("@", "*", "#") or name.isdigit():
            return self._argument(name, line)
        told = f" (the file that is sourced at line {self.sourced} may)" if self.sourced else ""
        return (replace(_unknown(f"${name}", line, f"${name}, which the script does not set{told} (--set "
                                 f"env.{name}=VALUE gives it)"), is_unset=True),)

    def _argument(self, name: str, line: int) -> tuple[Piece, ...]:
        """Value of `$@`, `$*`, `$#` or `$1`; one piece that says so where an item before may be several words."""
        items = self.arguments or ()
        if name in ("@", "*"):
            return tuple(piece for item in items for piece in (*_unquoted(item), Piece("", line, is_break=True)))
        if self.arguments is None:
            return (Piece("0", line) if name == "#" else _unknown(f"${name}", line, f"argument {name} of the script"),)
        number = len(items) if name == "#" else int(name[:9])
        if number == 0 and name != "#":
            return (_unknown("$0", line, "the name of the script"),)
        several = next((piece for item in items[:number] for piece in item if piece.unknown and not piece.is_quoted),
                       None)
        if several is not None:
            return (_unknown(f"${name}", line, several.unknown),)
        if name == "#":
            return (Piece(str(number), line),)
        return _unquoted(items[number - 1]) if number <= len(items) else (Piece("", line, is_unset=True),)

    def _braced(self, inner: str, line: int, *, is_quoted: bool, depth: int) -> Sequence[Piece]:
        """Pieces of `${inner}`."""
        whole = re.fullmatch(r"(#?)([A-Za-z_]\w*|[0-9@*#]+)(\[[^]]*\])?(.*)", inner, re.DOTALL)
        if whole is None:
            return [_unknown(f"${{{inner}}}", line, f"${{{inner[:40]}}}")]
        counts, name, index, operation = whole.groups()
        value = self.value(name, line)
        if index is not None:
            value = _item(value, index[1:-1])
        elif name in ("@", "*"):
            index = "[@]"
        elif not counts:
            value = _first(value)
        if counts:
            number = sum(piece.is_break for piece in value) if index else sum(len(piece.text) for piece in value)
            return [Piece(str(0 if value and value[0].is_unset else number), line)]
        if re.fullmatch(r":[1-9][0-9]{0,5}", operation) and name in ("@", "*"):
            return _items_from(value, int(operation[1:]))
        if not operation:
            return value
        return self._operated(name, value, operation, line, is_quoted=is_quoted, depth=depth)

    def _operated(self, name: str, value: tuple[Piece, ...], operation: str, line: int, *, is_quoted: bool,
                  depth: int) -> Sequence[Piece]:
        """Value with an operation such as `:-default`."""
        sign = re.match(r":?[-=+?]", operation)
        is_open = bool(value) and (value[0].is_unset or _is_argument(value[0]))
        if sign is None:
            if operation in (",,", "^^"):
                return [replace(piece, text=piece.text.lower() if operation == ",," else piece.text.upper())
                        for piece in value]
            return [_unknown(f"${{{name}{operation}}}", line, f"${{{name}{operation[:40]}}}, an operation on texts")]
        is_empty = sign[0][0] == ":" and not any(piece.text for piece in value)
        if sign[0][-1] == "+":
            return [] if is_open or is_empty else self.pieces(operation[sign.end():], line, is_quoted=is_quoted,
                                                               depth=depth)
        if not (is_open or is_empty) or sign[0][-1] == "?":
            return value
        given = self.pieces(operation[sign.end():], line, is_quoted=is_quoted, depth=depth)
        if sign[0][-1] == "=":
            self.values[name] = tuple(given)
        return given

    def _computed(self, raw: str, line: int, *, is_quoted: bool, depth: int) -> Piece:
        value = self.number(raw[3:-2], line, depth)
        if value is None:
            return _unknown(raw, line, f"{raw[:60]}, which the script alone does not decide", is_quoted=is_quoted)
        return Piece(str(value), line, is_quoted)

    def number(self, expression: str, line: int, depth: int = 0) -> int | None:
        """Value of an arithmetic expression; None if it depends on more than the script says."""
        pieces = self.pieces(expression, line, is_quoted=True, depth=depth + 1)
        if any(piece.unknown for piece in pieces):
            return None

        def value_of(name: str) -> int | None:
            text = "".join("?" if piece.unknown else piece.text for piece in self.value(name, line))
            return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
        return arithmetic("".join(piece.text for piece in pieces), value_of)


def _is_argument(piece: Piece) -> bool:
    return piece.unknown.startswith("argument ")


def _unknown(text: str, line: int, reason: str, *, is_quoted: bool = False) -> Piece:
    return Piece(text, line, is_quoted, reason)


def _lines(text: str, line: int, *, is_quoted: bool = False, unknown: str = "", is_unset: bool = False) -> list[Piece]:
    """One piece for each line of a text."""
    return [Piece(part, line + number, is_quoted, unknown, is_unset)
            for number, part in enumerate(text.splitlines(keepends=True))]


def _unquoted(value: Sequence[Piece]) -> tuple[Piece, ...]:
    return tuple(replace(piece, is_quoted=False) if piece.is_quoted else piece for piece in value)


def _in_quotes(value: Sequence[Piece], *, joins: bool) -> list[Piece]:
    """Pieces of a value in quotes; `joins`: its items are one word with blanks between them."""
    if joins:
        value = [replace(piece, text=" ", is_break=False) if piece.is_break else piece for piece in value]
        value = value[:-1] if value and value[-1].text == " " else value
    return [piece if piece.is_break else replace(piece, is_quoted=True) for piece in value]


def _items_from(value: Sequence[Piece], first: int) -> list[Piece]:
    """Pieces of the items from a number (from 1) on."""
    found, number = list[Piece](), 1
    for piece in value:
        found += [piece] if number >= first else []
        number += piece.is_break
    return found


def _first(value: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """First item of an array; a text as it is."""
    end = next((number for number, piece in enumerate(value) if piece.is_break), None)
    return value if end is None else value[:end]


def _item(value: tuple[Piece, ...], index: str) -> tuple[Piece, ...]:
    if index in ("@", "*"):
        return value
    parts: list[list[Piece]] = [[]]
    for piece in value:
        if piece.is_break:
            parts.append([])
        else:
            parts[-1].append(piece)
    if not index.isdigit() or int(index) >= len(parts):
        return (_unknown(f"[{index}]", value[0].line if value else 1, f"item {index[:40]} of an array"),)
    return tuple(parts[int(index)])


def _closing(raw: str, at: int, end: str) -> int:
    """Index of what closes the quote or bracket at `at`; the last index if nothing does."""
    opens, inside, number = raw[at], 0, at
    while number < len(raw):
        sign = raw[number]
        if sign == end and (number > at or opens != end):
            inside -= opens != end
            if not inside:
                return number
        elif sign == opens and opens != end:
            inside += 1
        elif sign == "\\":
            number += 1
        elif sign == "'" and opens != end:
            number = max(number, raw.find("'", number + 1))
        elif number > at and (sign in "\"`" or (sign == "$" and raw[number + 1:number + 2] in ("(", "{"))):
            number = _inner_end(raw, number)
        number += 1
    return len(raw) - 1


def _inner_end(raw: str, at: int) -> int:
    """Index of what closes a quote or an expansion that lies within another."""
    if raw[at] == "`":
        return max(at, raw.find("`", at + 1))
    if raw[at] == '"':
        return _closing(raw, at, '"')
    return _closing(raw, at + 1, ")" if raw[at + 1] == "(" else "}")


def _groups(pieces: Sequence[Piece]) -> list[list[Piece]]:
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


def _word(group: list[Piece], *, is_sourced: bool) -> Word:
    reason = next((piece for piece in group if piece.unknown), None)
    if reason is None:
        return Word("".join(piece.text for piece in group), group[0].line)
    is_empty = not is_sourced and all(piece.is_unset or _is_argument(piece) for piece in group)
    return Word("".join(piece.text for piece in group), group[0].line, reason.unknown, reason.is_unset, not is_empty)
