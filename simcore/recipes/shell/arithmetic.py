"""Whole numbers in `$(( ))`: the four operations, remainder and comparisons of numbers and variables."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Final

__all__ = ["arithmetic"]

_MOST: Final = 2**63
_LONGEST: Final = 200


def _quotient(left: int, right: int) -> int:
    """Rounded towards 0, as in C."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATIONS: Final[dict[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _quotient,
    ast.Mod: lambda left, right: left - _quotient(left, right) * right}
_COMPARISONS: Final[dict[type, Callable[[int, int], bool]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge}


def arithmetic(text: str, value_of: Callable[[str], int | None]) -> int | None:
    """Value of an expression, or None if it is not known. `value_of`: value of a variable, None if not known."""
    if len(text) > _LONGEST:
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, value_of)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, value_of: Callable[[str], int | None]) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < _MOST:
        return node.value
    if isinstance(node, ast.Name):
        return value_of(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand, value_of)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp):
        return _combined(_OPERATIONS.get(type(node.op)), _value(node.left, value_of), _value(node.right, value_of))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _combined(_COMPARISONS.get(type(node.ops[0])), _value(node.left, value_of),
                         _value(node.comparators[0], value_of))
    return None


def _combined(combine: Callable[[int, int], int] | None, left: int | None, right: int | None) -> int | None:
    if combine is None or left is None or right is None:
        return None
    value = int(combine(left, right))
    return value if abs(value) < _MOST else None
