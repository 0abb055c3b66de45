"""Rotation of query and key by the rows and columns of patches (transformers 5.23, `rotate_half`)."""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Tape, Tensor

__all__ = ["turned"]


def turned(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads `x`, [batch, patches, heads, head_dim], times a table, plus their halves exchanged times another."""
    straight = aten.mul(tape, x, cos, "rotary")
    return aten.add(tape, straight, aten.mul(tape, _rotated_half(tape, x), sin, "rotary"), "rotary")


def _rotated_half(tape: Tape, x: Tensor) -> Tensor:
    first, second = aten.slice_half(tape, x), aten.slice_half(tape, x)
    return aten.cat(tape, aten.neg(tape, second), first)
