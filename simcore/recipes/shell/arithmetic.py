"""Arithmetic of shells: `$(( ))`, `(( ))` and `let`, with C's operators and assignments, on whole numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Final

__all__ = ["Arithmetic"]

_MOST: Final = 2**63
_LONGEST: Final = 400
_MAX_DEPTH: Final = 24
_TOKEN: Final = re.compile(r"\s*(0[xX][0-9a-fA-F]+|[0-9]+|[A-Za-z_]\w*|<<=|>>=|\*\*|\+\+|--|&&|\|\||<<|>>"
                           r"|[-+*/%&|^<>=!]=|[-+*/%&|^<>=!~?:(),])")
_ASSIGNS: Final = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="})


def _quotient(left: int, right: int) -> int:
    """Rounded towards 0, as in C."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _power(left: int, right: int) -> int:
    if not 0 <= right <= 64:
        raise ValueError
    return int(left**right)


def _shifted(left: int, right: int) -> int:
    if not 0 <= right <= 62:
        raise ValueError
    return left << right


_OPERATIONS: Final[dict[str, tuple[int, Callable[[int, int], int]]]] = {
    "||": (1, lambda left, right: bool(left) or bool(right)), "&&": (2, lambda left, right: bool(left) and bool(right)),
    "|": (3, operator.or_), "^": (4, operator.xor), "&": (5, operator.and_), "==": (6, operator.eq),
    "!=": (6, operator.ne), "<": (7, operator.lt), "<=": (7, operator.le), ">": (7, operator.gt),
    ">=": (7, operator.ge), "<<": (8, _shifted), ">>": (8, operator.rshift), "+": (9, operator.add),
    "-": (9, operator.sub), "*": (10, operator.mul), "/": (10, _quotient),
    "%": (10, lambda left, right: left - _quotient(left, right) * right), "**": (11, _power)}
"""Rank of an operator of two numbers, and its function; the highest rank is computed first."""


class Arithmetic:
    """Evaluation of expressions. `read`: value of a variable, None if not known; `write`: sets one, or makes it so."""

    def __init__(self, read: Callable[[str], int | None], write: Callable[[str, int | None], None]) -> None:
        self.read, self.write = read, write
        self.tokens: list[str] = []
        self.at = self.depth = 0

    def value(self, text: str) -> int | None:
        """Value of an expression, or None if it is not known. What it may assign is then not known either."""
        self.tokens, self.at = self._split(text), 0
        try:
            value = self._list() if self.tokens else None
            if self.at == len(self.tokens):
                return value
        except (ValueError, ZeroDivisionError, IndexError):
            pass
        for name in re.findall(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%&|^]?=(?!=)|<<=|>>=)", text) + re.findall(
                r"(?:\+\+|--)\s*([A-Za-z_]\w*)", text):
            self.write(name, None)
        return None

    def _split(self, text: str) -> list[str]:
        found, at, text = list[str](), 0, text.strip()
        while len(text) <= _LONGEST and at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                return []
            found.append(token[1])
            at = token.end()
        return found

    def _list(self) -> int | None:
        value = self._assigned()
        while self._take(","):
            value = self._assigned()
        return value

    def _assigned(self) -> int | None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError
        name, sign = self._peek(), self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if sign in _ASSIGNS and re.fullmatch(r"[A-Za-z_]\w*", name):
            self.at += 2
            value = self._assigned()
            value = value if sign == "=" else _combined(sign[:-1], self.read(name), value)
            self.write(name, value)
        else:
            value = self._chosen()
        self.depth -= 1
        return value

    def _chosen(self) -> int | None:
        condition = self._joined(1)
        if not self._take("?"):
            return condition
        first = self._assigned()
        if not self._take(":"):
            raise ValueError
        second = self._assigned()
        return None if condition is None else first if condition else second

    def _joined(self, least: int) -> int | None:
        left = self._single()
        while (sign := self._peek()) in _OPERATIONS and _OPERATIONS[sign][0] >= least:
            self.at += 1
            left = _combined(sign, left, self._joined(_OPERATIONS[sign][0] + (sign != "**")))
        return left

    def _single(self) -> int | None:
        sign = self.tokens[self.at]
        self.at += 1
        if sign in ("++", "--"):
            return self._stepped(self._name(), 1 if sign == "++" else -1, after=False)
        if sign in ("-", "+", "!", "~"):
            inner = self._single()
            return None if inner is None else {"-": -inner, "+": inner, "!": int(not inner), "~": ~inner}[sign]
        if sign == "(":
            value = self._list()
            if not self._take(")"):
                raise ValueError
            return value
        if sign[0].isdigit():
            return int(sign, 0) if sign[:2] in ("0x", "0X") else int(sign, 8 if sign[0] == "0" else 10)
        if not re.fullmatch(r"[A-Za-z_]\w*", sign):
            raise ValueError
        for behind, step in (("++", 1), ("--", -1)):
            if self._take(behind):
                return self._stepped(sign, step, after=True)
        return self.read(sign)

    def _stepped(self, name: str, step: int, *, after: bool) -> int | None:
        old = self.read(name)
        new = None if old is None else old + step
        self.write(name, new)
        return old if after else new

    def _name(self) -> str:
        self.at += 1
        if not re.fullmatch(r"[A-Za-z_]\w*", self.tokens[self.at - 1]):
            raise ValueError
        return self.tokens[self.at - 1]

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, text: str) -> bool:
        is_next = self._peek() == text
        self.at += is_next
        return is_next


def _combined(sign: str, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    value = int(_OPERATIONS[sign][1](left, right))
    return value if abs(value) < _MOST else None
