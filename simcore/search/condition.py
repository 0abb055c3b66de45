"""Conditions of a search over keys and results, such as `mesh.tp <= 8 and peak_gib < 70`.

The syntax is that of Python, restricted to comparisons, `and`, `or`, `not`, arithmetic, numbers and text. A name is a
dotted key of a scenario (`mesh.tp`, `training.micro_batch_size`), or one of `RESULTS`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.yaml_parser import dotted

__all__ = ["OF_MEMORY", "OF_TIME", "RESULTS", "Condition", "condition"]

OF_MEMORY: Final = {
    "peak_gib": "device memory of the fullest rank", "headroom_gib": "memory that is left there",
    "verdict": "fits, unsure or oom", "num_gpus": "GPUs that train, without those of engines beside them"}
OF_TIME: Final = {
    "step_s": "seconds of a step", "tokens_per_s_per_gpu": "tokens per second and GPU",
    "usd_per_million_tokens": "US dollars for a million tokens", "mfu": "model FLOPs utilisation, 0 to 1"}
RESULTS: Final = {**OF_MEMORY, **OF_TIME}
"""Results that conditions may name, with their meaning."""

_ALLOWED: Final = (ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add,
                   ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE,
                   ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Constant, ast.Tuple, ast.List, ast.Name, ast.Load)
_MANY: Final = 1000
"""Most characters of a condition."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as it was written, compiled, with the names in it (dotted keys and results).

    `place`: of the condition, for messages.
    """

    text: str
    code: CodeType
    names: tuple[str, ...]
    place: str

    @property
    def needs_memory(self) -> bool:
        """True if it can be decided only after a simulation."""
        return any(name in RESULTS for name in self.names)

    @property
    def needs_time(self) -> bool:
        """True if it can be decided only after a simulation with time."""
        return any(name in OF_TIME for name in self.names)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """True if the condition holds with `values` of its names. InputError for values that cannot be compared."""
        try:
            local = {_variable(name): values[name] for name in self.names}
            return bool(eval(self.code, {"__builtins__": {}}, local))  # noqa: S307 - only the nodes in _ALLOWED
        except (TypeError, ArithmeticError) as error:
            raise InputError(Problem(self.place, f"cannot be decided: {error}")) from None


def condition(text: str, place: str = "") -> Condition:
    """Condition from its text. `place`: of it, for messages; "": the option `--where`.

    InputError if it does not parse, or has anything else than the module lists.
    """
    where = place or f"--where {text[:100]}"
    if len(text) > _MANY:
        raise InputError(Problem(where, f"expected at most {_MANY} characters, got {len(text):,}"))
    try:
        tree = ast.parse(text.strip(), mode="eval")
        named = _Named()
        plain = ast.fix_missing_locations(named.visit(tree))
        strange = next((node for node in ast.walk(plain) if not isinstance(node, _ALLOWED)), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(Problem(where, f"expected a condition such as 'mesh.tp <= 8', {reason}")) from None
    if strange is not None:
        raise InputError(Problem(where, f"expected comparisons of keys, results and numbers, got {_kind(strange)}"))
    if not named.names:
        raise InputError(Problem(where, "expected at least one key or result, found none"))
    return Condition(text.strip(), compile(plain, "<condition>", "eval"), tuple(dict.fromkeys(named.names)), where)


def _variable(name: str) -> str:
    return name.replace(".", "__")


def _kind(node: ast.AST) -> str:
    return {"Call": "a call", "Pow": "a power", "Attribute": "an attribute", "Subscript": "an index"}.get(
        type(node).__name__, type(node).__name__)


class _Named(ast.NodeTransformer):
    """Turns dotted names into variables, and collects them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        parts: list[str | int] = [node.attr]
        inner = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        return self._named(dotted((inner.id, *reversed(parts)))) if isinstance(inner, ast.Name) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._named(node.id)

    def _named(self, name: str) -> ast.Name:
        self.names.append(name)
        return ast.Name(_variable(name), ast.Load())
