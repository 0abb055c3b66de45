"""Expansion of a shell script's words: quotes, variables with their defaults, arrays, arithmetic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.arithmetic import Arithmetic
from simcore.recipes.shell.braces import in_braces
from simcore.recipes.shell.operations import operated, split_slice
from simcore.recipes.shell.pieces import (
    Piece,
    Word,
    first_item,
    groups,
    in_quotes,
    is_argument,
    item,
    items_of,
    known_text,
    lines_of,
    pattern_of,
    reason_of,
    sliced,
    unknown,
    unquoted,
    word_of,
)
from simcore.recipes.shell.substitution import document_of, output_of
from simcore.recipes.shell.tokens import Token
from simcore.recipes.shell.values import Values

__all__ = ["Variables"]

_MOST: Final = 2**18
"""Characters and pieces of all expansions of a script together, counting a piece as `_WEIGHT` characters."""
_WEIGHT: Final = 16
_MAX_DEPTH: Final = 32
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_NO_WORD: Final = re.compile(r"\$@|\$\{(@|\w+\[@\])(:[0-9]+)?\}")
"""Expansions that are no word, even in quotes, where they have no items."""
_SPECIAL: Final = "@*#?$!-0123456789"
_ESCAPED: Final = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "r": "\r", "e": "\x1b", "a": "\a", "b": "\b"}
_OUTPUT: Final = "the output of a command"


@dataclass
class Variables(Values):
    """Variables of a script while it is read, and what its words stand for by them."""

    spent: int = field(default=0, kw_only=True)

    # ---- words -------------------------------------------------------------------------------------------------
    def words(self, tokens: Sequence[Token]) -> list[Word]:
        """Words of a command, split at blanks as a shell splits them."""
        return [word_of(group) for group in self._groups(tokens)]

    def given_to(self, tokens: Sequence[Token]) -> tuple[tuple[Piece, ...], ...]:
        """Items of `$@` of a function that is called with these words; what nothing sets is no item."""
        return tuple(tuple(group) for group in self._groups(tokens)
                     if not all(piece.is_unset and not piece.is_quoted for piece in group))

    def items(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """Pieces of an array with these words, a border after each; what nothing sets is no item."""
        return tuple(piece for group in self._groups(tokens)
                     for piece in (*group, Piece("", group[0].line, is_break=True)))

    def number(self, expression: str, line: int, depth: int = 0) -> int | None:
        """Value of an arithmetic expression, whose assignments are made; None if more than the script decides it."""
        pieces = self.pieces(expression, line, is_quoted=True, depth=depth + 1)

        def value_of(name: str) -> int | None:
            text = known_text(self.value(name, line)) or ""
            return int(text) if re.fullmatch(r"-?(?:0|[1-9][0-9]{0,17})", text) else None

        def put(name: str, value: int | None) -> None:
            self.values[name] = (unknown(f"${name}", line, f"{expression.strip()[:60]}, which the script alone does "
                                                           "not decide") if value is None else Piece(str(value), line),)
        is_known = not any(piece.unknown for piece in pieces)
        return Arithmetic(value_of, put).value("".join(piece.text for piece in pieces) if is_known else
                                               re.sub(r"\$\{?(\w+)\}?", r"\1", expression))

    def pieces(self, raw: str, line: int, *, is_quoted: bool = False, depth: int = 0) -> list[Piece]:
        """Pieces of a word as it is written, without its quotes."""
        found, at = list[Piece](), 0
        if depth > _MAX_DEPTH:
            raise InputError(Problem(f"{self.path}:{line}", f"more than {_MAX_DEPTH} expansions in one another"))
        while at < len(raw):
            start, at = at, self._pass(raw, at, line, found, is_quoted=is_quoted, depth=depth)
            line += raw.count("\n", start, at)
        self._spend(found, line)
        if self.inside and not depth:  # what a file sets counts as set where it is sourced
            return [replace(piece, line=self.inside[0]) for piece in found]
        return found

    def document(self, token: Token) -> list[Piece]:
        """Text of a here-document, whose variables are those of the script unless its end is in quotes."""
        if token.kind == "literal":
            return lines_of(token.text, token.line, is_quoted=True)
        raw = re.sub(r'\\"|"', lambda found: '\\\\\\"' if found[0] == '\\"' else '\\"', token.text)
        return self.pieces(raw, token.line, is_quoted=True)

    def _groups(self, tokens: Sequence[Token]) -> list[list[Piece]]:
        return [group for token in tokens for raw in in_braces(token.text)
                for group in groups(self.pieces(raw, token.line))]

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
            found += lines_of(raw[at + 1:end], line, is_quoted=True) or [Piece("", line, is_quoted=True)]
            return end + 1
        if sign == '"':
            end = _closing(raw, at, '"')
            inner = self.pieces(raw[at + 1:end], line, is_quoted=True, depth=depth + 1)
            found += inner or ([] if _NO_WORD.fullmatch(raw, at + 1, end) else [Piece("", line, is_quoted=True)])
            return end + 1
        if sign == "`":
            end = raw.find("`", at + 1)
            end = len(raw) - 1 if end < 0 else end
            found += self._output(raw[at:end + 1], raw[at + 1:end], line, is_quoted=is_quoted)
            return end + 1
        if sign == "$":
            return self._dollar(raw, at, line, found, is_quoted=is_quoted, depth=depth)
        plain = re.compile(r"[^\\'\"`$]+" if not is_quoted else r"[^\\\"`$]+").match(raw, at)
        end = plain.end() if plain else at + 1
        found += lines_of(raw[at:end], line, is_quoted=is_quoted)
        return end

    # ---- $ -----------------------------------------------------------------------------------------------------
    def _dollar(self, raw: str, at: int, line: int, found: list[Piece], *, is_quoted: bool, depth: int) -> int:
        rest = raw[at + 1:at + 3]
        if rest[:1] in ("(", "{", "["):
            end = _closing(raw, at + 1, {"(": ")", "{": "}", "[": "]"}[rest[0]])
            inner = raw[at + 2:end]
            if rest[0] == "{":
                value = self._braced(inner, line, is_quoted=is_quoted, depth=depth + 1)
                joins = re.match(r"\*|\w+\[\*\]", inner) is not None
                found += self._placed(value, line, is_quoted=is_quoted, joins=joins)
            elif rest == "((" or rest[0] == "[":
                found.append(self._computed(raw[at:end + 1], inner[1:-1] if rest == "((" else inner, line,
                                            is_quoted=is_quoted, depth=depth))
            else:
                found += self._output(raw[at:end + 1], inner, line, is_quoted=is_quoted)
            return end + 1
        if rest[:1] == "'" and not is_quoted:
            return self._escaped(raw, at, line, found)
        name = _NAME.match(raw, at + 1)
        if (name is None and rest[:1] not in _SPECIAL) or not rest:
            found.append(Piece("$", line, is_quoted=True))
            return at + 1
        text = name[0] if name else rest[0]
        value = self.value(text, line)
        self._spend(value, line)
        value = value if text in ("@", "*") else first_item(value)
        found += self._placed(value, line, is_quoted=is_quoted, joins=text == "*")
        return at + 1 + len(text)

    def _placed(self, value: Sequence[Piece], line: int, *, is_quoted: bool, joins: bool) -> Sequence[Piece]:
        """Value where it stands: in quotes as one word, outside of them split at blanks, or at what IFS says."""
        if "IFS" in self.values and (joins or (not is_quoted and any(not piece.text.isalnum() for piece in value))):
            return [unknown("$IFS", line, f"IFS, which line {self.values['IFS'][0].line} sets", is_quoted=is_quoted)]
        return in_quotes(value, joins=joins) if is_quoted else value

    def _escaped(self, raw: str, at: int, line: int, found: list[Piece]) -> int:
        """Adds a text of `$'...'`."""
        inner = re.compile(r"(?:[^'\\]|\\.)*", re.DOTALL).match(raw, at + 2)
        text = inner[0] if inner else ""
        if re.search(r"\\[^ntre\\'\"ab]", text):
            found.append(unknown(f"$'{text}'", line, "signs by their numbers", is_quoted=True))
        else:
            text = re.sub(r"\\(.)", lambda sign: _ESCAPED[sign[1]], text, flags=re.DOTALL)
            found += lines_of(text, line, is_quoted=True) or [Piece("", line, is_quoted=True)]
        return at + 3 + len(inner[0] if inner else "")

    def _output(self, raw: str, inner: str, line: int, *, is_quoted: bool) -> list[Piece]:
        """Output of a command, where its words alone tell it."""
        if passed := document_of(inner, self.path, line):
            return list(self._placed(self.document(passed), line, is_quoted=is_quoted, joins=False))
        text = output_of(inner, self.path, line, self.words)
        if text is None:
            return [unknown(raw, line, _OUTPUT, is_quoted=is_quoted)]
        return list(self._placed([Piece(text, line)] if text else [], line, is_quoted=is_quoted, joins=False))

    def _braced(self, inner: str, line: int, *, is_quoted: bool, depth: int) -> Sequence[Piece]:
        """Pieces of `${inner}`."""
        whole = re.fullmatch(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*#])(\[[^]]*\])?(.*)", inner, re.DOTALL)
        if whole is None:
            return [unknown(f"${{{inner}}}", line, f"${{{inner[:40]}}}")]
        sign, name, index, operation = whole.groups()
        if sign == "!":
            named = known_text(self.value(name, line)) or ""
            if index or not _NAME.fullmatch(named):
                return [unknown(f"${{{inner}}}", line, f"${{{inner[:40]}}}")]
            name = named
        value = self._indexed(name, index, line, depth)
        self._spend(value, line)
        is_list = name in ("@", "*") or index in ("[@]", "[*]")
        if sign == "#" and name:
            return [self._counted(value, inner, line, is_list=is_list)]
        if is_list and re.match(r":\s*[0-9$({]|: -", operation):
            return self._slice(name, value, operation, line, depth)
        if not operation:
            return value
        return self._operated(name if index is None else f"{name}{index}", value, operation, line, is_quoted=is_quoted,
                              depth=depth)

    def _indexed(self, name: str, index: str | None, line: int, depth: int) -> tuple[Piece, ...]:
        """Value of a variable, or item of an array."""
        value = self.value(name, line)
        if index is None or index in ("[@]", "[*]"):
            return value if index or name in ("@", "*") else first_item(value)
        key = self.key_of(name, index[1:-1], line, depth)
        own = self.values.get(f"{name}[{key}]")
        if own is not None:
            return unquoted(own)
        number = int(key) if key is not None and re.fullmatch(r"-?[0-9]{1,6}", key) else None
        return value if value and value[0].is_unset else item(value, number, index[1:-1])

    def key_of(self, name: str, index: str, line: int, depth: int = 0) -> str | None:
        """Key that stands in the brackets of an item; of a numbered array its number. None if it is not known."""
        if name in self.tables:
            return known_text(self.pieces(index, line, depth=depth + 1))
        number = self.number(index, line, depth)
        return None if number is None else str(number)

    def _counted(self, value: Sequence[Piece], inner: str, line: int, *, is_list: bool) -> Piece:
        """Number of the items of an array, or of the signs of a text."""
        if value and value[0].is_unset:
            return Piece("0", line)
        if any(piece.unknown and not (is_list and piece.is_quoted) for piece in value):
            return unknown(f"${{{inner}}}", line, f"${{{inner[:40]}}}: {reason_of(value) or value[0].unknown}")
        number = len(items_of(value)) if is_list else sum(len(piece.text) for piece in value)
        return Piece(str(number), line)

    def _slice(self, name: str, value: tuple[Piece, ...], operation: str, line: int, depth: int) -> Sequence[Piece]:
        """Items of `${@:2:3}` or `${A[@]:2:3}`; `$@` has the name of the script before them."""
        if value and value[0].is_unset:
            return value
        first, length = split_slice(operation[1:])
        offset, count = self.number(first, line, depth), self.number(length, line, depth) if length else None
        is_open = offset is None or (length and count is None) or (name in ("@", "*") and offset <= 0)
        found = None if is_open or offset is None else sliced(value, offset - (name in ("@", "*")), count)
        whole = f"${{{name}{operation}}}"
        return [unknown(whole, line, f"{whole[:40]}, items that are not known")] if found is None else found

    def _operated(self, name: str, value: tuple[Piece, ...], operation: str, line: int, *, is_quoted: bool,
                  depth: int) -> Sequence[Piece]:
        """Value with an operation such as `:-default`."""
        sign = re.match(r":?[-=+?]", operation)
        is_open = bool(value) and (value[0].is_unset or is_argument(value[0]))
        if sign is None:
            return value if is_open or not value else [self._changed(name, value, operation, line, depth)]
        reason = "" if is_open else reason_of(value)
        is_empty = sign[0][0] == ":" and not any(piece.text for piece in value)
        if sign[0][-1] == "+":
            given = [] if is_open or is_empty else self.pieces(operation[sign.end():], line, is_quoted=is_quoted,
                                                               depth=depth)
            return [replace(piece, unknown=piece.unknown or reason) for piece in given]
        if not (is_open or is_empty) or sign[0][-1] == "?":
            return value
        given = self.pieces(operation[sign.end():], line, is_quoted=is_quoted, depth=depth)
        if sign[0][-1] == "=":
            self.values[name] = tuple(given) or (Piece("", line),)
        return given

    def _changed(self, name: str, value: Sequence[Piece], operation: str, line: int, depth: int) -> Piece:
        """Text of a variable after an operation on texts."""
        text = None if any(piece.is_break for piece in value) else known_text(value)
        found = None if text is None else operated(
            text, operation, lambda raw: pattern_of(self.pieces(raw, line, depth=depth + 1)),
            lambda raw: self.number(raw, line, depth + 1))
        if found is None:
            return unknown(f"${{{name}{operation}}}", line, f"${{{name}{operation[:40]}}}, an operation on texts")
        return Piece(found, line)

    def _computed(self, raw: str, inner: str, line: int, *, is_quoted: bool, depth: int) -> Piece:
        value = self.number(inner, line, depth)
        if value is None:
            return unknown(raw, line, f"{raw[:60]}, which the script alone does not decide", is_quoted=is_quoted)
        return Piece(str(value), line, is_quoted)


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
