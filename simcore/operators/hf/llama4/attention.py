"""Norms and attention of Llama 4 (transformers 5.23 `models/llama4/modeling_llama4.py`)."""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Attention
from simcore.operators.shared import aten
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["attention", "rms_norm"]

Project = Callable[[str, Tensor], Tensor]
"""(part, x) -> output of the part's linear, "q", "k", "v" or "o"."""

Core = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query, key, value) by heads -> output by heads."""


def rms_norm(tape: Tape, weight: Param, x: Tensor) -> Tensor:
    """RMSNorm of `x` in fp32, cast back before its weight (`Llama4TextRMSNorm`); like `x`."""
    return aten.mul(tape, _unit(tape, x), weight)


def _unit(tape: Tape, x: Tensor) -> Tensor:
    """`x` over the root of its mean square, made in fp32 (`Llama4TextL2Norm`); like `x`."""
    return aten.cast(tape, _scaled(tape, aten.cast(tape, x, "fp32")), x.dtype)


def _scaled(tape: Tape, x: Tensor) -> Tensor:
    return aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, aten.mean(tape, aten.square(tape, x)))))


def attention(tape: Tape, block: Attention, x: Tensor, table: Tensor | None, project: Project, core: Core) -> Tensor:
    """Output of `Llama4TextAttention` for `x` [b, s, hidden], in its shape.

    `table`: of complex numbers, fp32 [1, s, d / 2, 2], None where nothing is turned. There queries are multiplied by a
    number of their position, made in fp32; positions and numbers live until it returns.
    """
    seq, dim = x.shape[1], block.head_dim
    query, key, value = (aten.to_heads(tape, project(part, x), dim) for part in "qkv")
    if block.rotary:
        assert table is not None
        query, key = _turned(tape, query, key, table)
        if block.unit_norms:
            query = _unit(tape, query)
            key = _unit(tape, key)
    elif block.tempered:
        positions = aten.select(tape, aten.new(tape, (seq,), "int64", "arange"), (seq,), "int64", "positions")
        scales = _scales(tape, positions).view(1, seq, 1, 1)
        query = aten.cast(tape, aten.mul(tape, query, scales, "tempered"), query.dtype)
    out = core(query, key, value)
    return project("o", out.view(*out.shape[:2], block.q_size))


def _turned(tape: Tape, query: Tensor, key: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Both as complex numbers in fp32 (`apply_rotary_emb`), of which all live until it returns."""
    wide_query, wide_key = aten.cast(tape, query, "fp32"), aten.cast(tape, key, "fp32")
    out_query = aten.rotate(tape, wide_query, table)
    out_key = aten.rotate(tape, wide_key, table)
    return aten.cast(tape, out_query, query.dtype), aten.cast(tape, out_key, key.dtype)


def _scales(tape: Tape, positions: Tensor) -> Tensor:
    """`log1p(floor((positions + 1) / floor_scale)) * attn_scale + 1` in fp32, number by number."""
    scales = aten.select(tape, positions, positions.shape, "fp32", "scales")
    for _ in range(6):
        scales = aten.select(tape, scales, scales.shape, "fp32", "scales")
    return scales
