"""Patterns of layers in Megatron's arguments: `--moe-layer-freq` and `--hybrid-layer-pattern`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["HybridPattern", "expert_layers", "hybrid_pattern"]

_MOST: Final = 100_000
_LIST: Final = re.compile(r"[\[\]()0-9,*+\s]{1,2000}")


def expert_layers(text: str, num_layers: int) -> tuple[int, ...] | None:
    """1 for each layer with experts, 0 for each dense one; None if the text is no such pattern.

    A number n: every n-th layer from the first has experts. Else a Python list such as "[0]*3+[1]*58" (Megatron-LM
    `training/arguments.py`, moe_freq_type; core `models/gpt/gpt_layer_specs.py`, get_gpt_decoder_block_spec).
    """
    if re.fullmatch(r"[1-9][0-9]{0,5}", text):
        return tuple(int(layer % int(text) == 0) for layer in range(min(num_layers, _MOST)))
    if not _LIST.fullmatch(text):
        return None
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tuple(value) if isinstance(value, list) and len(value) == num_layers else None


def _value(node: ast.expr) -> list[int] | int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and 0 <= node.value <= _MOST:
        return node.value
    if isinstance(node, ast.List):
        inner = [_value(one) for one in node.elts]
        if all(isinstance(one, int) for one in inner):
            return [one for one in inner if isinstance(one, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return _bounded([*left, *right])
        if isinstance(node.op, ast.Mult) and isinstance(left, list) != isinstance(right, list):
            layers, times = (left, right) if isinstance(left, list) else (right, left)
            if isinstance(layers, list) and isinstance(times, int) and len(layers) * times <= _MOST:
                return layers * times
    raise ValueError


def _bounded(layers: list[int]) -> list[int]:
    if len(layers) > _MOST:
        raise ValueError
    return layers


@dataclass(frozen=True, slots=True)
class HybridPattern:
    """A pattern such as "M-M*|M-M*/ME/ME": letters of the layers, of each segment between `|`, of each module of MTP.

    Megatron-LM main `core/models/hybrid/hybrid_layer_allocation.py`.
    """

    letters: str
    segments: tuple[str, ...]
    further: tuple[str, ...]


def hybrid_pattern(text: str) -> HybridPattern:
    """Parts of a pattern."""
    main, *further = text.split("/")
    return HybridPattern(main.replace("|", ""), tuple(main.split("|")), tuple(further))
