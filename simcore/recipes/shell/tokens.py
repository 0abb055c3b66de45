"""Tokens of a shell script: words with their quotes, operators, arrays and here-documents, each with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from simcore.errors import InputError, Problem

__all__ = ["Token", "tokens_of"]

_OPERATORS: Final = (";;&", "&>>", "<<<", "<<-", "&&", "||", ";;", "|&", "&>", ";&", "<<", ">>", ">&", "<&", "<>", ">|",
                     ";", "&", "|", "(", ")", "<", ">", "\n")  # fmt: skip
_BEFORE_COMMANDS: Final = frozenset({"if", "elif", "while", "until", "then", "do", "else", "for", "!", "{"})
_REDIRECTS: Final = frozenset({"<", ">", ">>", "&>", "&>>", ">&", "<&", ">|", "<>", "<<<"})
_ENDS: Final = frozenset(" \t\n;&|<>()")
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
_MOST: Final = 20_000
"""Tokens outside of arrays."""
_MAX_DEPTH: Final = 32
"""Quotes, substitutions and arrays in one another."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a script, and the line (from 1) that it begins on.

    `kind`: "word" (`text` as written, with quotes), "operator", "array" (`text` is `NAME=` or `NAME+=`, `items` are its
    words), "arithmetic" and "condition" (`text` within `(( ))` and `[[ ]]`), "document" (text of a here-document) and
    "literal" (of one whose end is in quotes).
    """

    kind: Literal["word", "operator", "array", "arithmetic", "condition", "document", "literal"]
    text: str
    line: int
    items: tuple[Token, ...] = ()


def tokens_of(text: str, path: str, line: int = 1) -> list[Token]:
    """Tokens of a script; `line`: number of its first line. InputError for quotes and brackets that never close."""
    return _Scanner(text, path, line).tokens()


@dataclass
class _Scanner:
    text: str
    path: str
    line: int
    at: int = 0
    found: list[Token] = field(default_factory=list)
    awaited: list[tuple[str, bool, int]] = field(default_factory=list)
    """Ends of here-documents that begin after this line, as written, True where tabs before lines are dropped, and the
    number of tokens before each."""

    def tokens(self) -> list[Token]:
        while self._skip_blank():
            if len(self.found) > _MOST:
                raise self._fail(self.line, f"more than {_MOST:,} words")
            operator = self._operator()
            if self._at_start() and self.text.startswith("((", self.at):
                self._arithmetic()
            elif self._at_start() and re.match(r"\[\[\s", self.text[self.at:self.at + 3]):
                self._condition()
            elif operator in ("<<", "<<-"):
                self._announce(operator)
            elif operator and not self.text.startswith(("<(", ">("), self.at):
                self._add_operator(operator)
            else:
                self._add_word()
        return self.found

    # ---- steps -------------------------------------------------------------------------------------------------
    def _skip_blank(self) -> bool:
        """Passes blanks, continued lines and comments; False at the end of the text."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self._move(2)
            elif self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _operator(self) -> str:
        return next((sign for sign in _OPERATORS if self.text.startswith(sign, self.at)), "")

    def _add_operator(self, operator: str) -> None:
        self.found.append(Token("operator", operator, self.line))
        self._move(len(operator))
        if operator == "\n":
            for added, (end, is_indented, place) in enumerate(self.awaited):
                self.found.insert(place + added, self._document(end, is_indented=is_indented))
            self.awaited.clear()

    def _at_start(self) -> bool:
        """True where a command may begin."""
        return not self.found or self.found[-1].kind == "operator" or self.found[-1].text in _BEFORE_COMMANDS

    def _arithmetic(self) -> None:
        line, start = self.line, self.at
        self._pass_brackets("(", ")", 0)
        self.found.append(Token("arithmetic", self.text[start + 2:self.at - 2], line))

    def _condition(self) -> None:
        line, start = self.line, self.at
        self._move(2)
        while not self.text.startswith("]]", self.at):
            if self.at >= len(self.text):
                raise self._fail(line, "a [[ that is never closed")
            self._pass_one(0)
        self._move(2)
        self.found.append(Token("condition", self.text[start + 2:self.at - 2], line))

    def _announce(self, operator: str) -> None:
        self._move(len(operator))
        self._skip_blank()
        self.awaited.append((self._word().text, operator == "<<-", len(self.found)))

    def _document(self, written: str, *, is_indented: bool) -> Token:
        line, body, end = self.line, list[str](), re.sub(r"[\"'\\]", "", written)
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            one = self.text[self.at:stop]
            self._move(min(stop + 1, len(self.text)) - self.at)
            if (one.lstrip("\t") if is_indented else one) == end:
                break
            body.append(one.lstrip("\t") if is_indented else one)
        return Token("document" if end == written else "literal", "\n".join(body), line)

    def _add_word(self) -> None:
        token = self._word()
        last = self.found[-1] if self.found else None
        if token.text.isdigit() and self.at < len(self.text) and self.text[self.at] in "<>":
            return  # the number of a stream that is redirected
        if last and last.kind == "operator" and last.text in _REDIRECTS:
            self.found.pop()  # a file, or another stream
            return
        self.found.append(token)

    # ---- words -------------------------------------------------------------------------------------------------
    def _word(self, depth: int = 0) -> Token:
        start, line = self.at, self.line
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == "(" and _ASSIGNED.fullmatch(self.text, start, self.at):
                return self._array(self.text[start:self.at], line, depth)
            if self.text.startswith(("<(", ">("), self.at):
                self._move(1)
                self._pass_brackets("(", ")", depth)
            elif sign in _ENDS:
                break
            else:
                self._pass_one(depth)
        return Token("word", self.text[start:self.at], line)

    def _array(self, name: str, line: int, depth: int) -> Token:
        self._deeper(depth)
        self._move(1)
        items: list[Token] = []
        while self._skip_blank():
            if self.text[self.at] == "\n":
                self._move(1)
            elif self.text[self.at] == ")":
                self._move(1)
                return Token("array", name, line, tuple(items))
            elif (sign := self._operator()) and not self.text.startswith(("<(", ">("), self.at):
                raise self._fail(line, f"{sign!r} in an array")
            else:
                items.append(self._word(depth + 1))
        raise self._fail(line, "an array that is never closed")

    def _pass_one(self, depth: int) -> None:
        """Passes one sign of a word, or all that a quote or a substitution encloses."""
        rest = self.text[self.at:self.at + 2]
        if rest[0] == "\\":
            self._move(len(rest))
        elif rest[0] == "'":
            self._pass_to("'")
        elif rest[0] == '"':
            self._pass_quoted(depth)
        elif rest[0] == "`":
            self._pass_to("`")
        elif rest == "$'":
            self.at += 1
            self._pass_to("'")
        elif rest in ("$(", "${"):
            self.at += 1
            self._pass_brackets(rest[1], {"(": ")", "{": "}"}[rest[1]], depth)
        else:
            self._move(1)

    def _pass_to(self, end: str) -> None:
        stop = self.text.find(end, self.at + 1)
        if stop < 0:
            raise self._fail(self.line, f"a {end} that is never closed")
        self._move(stop + 1 - self.at)

    def _pass_quoted(self, depth: int) -> None:
        self._deeper(depth)
        line = self.line
        self._move(1)
        while self.at < len(self.text):
            if self.text[self.at] == '"':
                self._move(1)
                return
            if self.text[self.at] == "'":
                self._move(1)
            else:
                self._pass_one(depth + 1)
        raise self._fail(line, 'a " that is never closed')

    def _pass_brackets(self, opens: str, closes: str, depth: int) -> None:
        self._deeper(depth)
        line, inside = self.line, 0
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign in (opens, closes):
                inside += 1 if sign == opens else -1
                self._move(1)
                if not inside:
                    return
            else:
                self._pass_one(depth + 1)
        raise self._fail(line, f"a {opens} that is never closed")

    # ---- inner -------------------------------------------------------------------------------------------------
    def _move(self, length: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + length)
        self.at += length

    def _deeper(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self._fail(self.line, f"more than {_MAX_DEPTH} quotes and brackets in one another")

    def _fail(self, line: int, message: str) -> InputError:
        return InputError(Problem(f"{self.path}:{line}", f"not read as a shell script: {message}"))
