"""Rotation by tables of cosines and sines in two halves, as upstreams write it of operators (`rotate_half`)."""

from __future__ import annotations

from simcore.operators.shared.aten.elementwise import add, mul, neg
from simcore.operators.shared.aten.indexing import cat, slice_half
from simcore.recording.tape import Tape, Tensor

__all__ = ["rotate_half", "rotate_halves"]


def rotate_halves(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x * cos + rotate_half(x) * sin` of `x` [b, s, heads, d], tables [1, s, 1, d]: a new tensor like `x`."""
    straight = mul(tape, x, cos, "rotary")
    return add(tape, straight, mul(tape, rotate_half(tape, x), sin, "rotary"), "rotary")


def rotate_half(tape: Tape, x: Tensor) -> Tensor:
    """The second half of the last dimension of `x`, negated, before the first: a new tensor like `x`."""
    first, second = slice_half(tape, x), slice_half(tape, x)
    return cat(tape, neg(tape, second), first)
