"""Rotation of the last dimensions of heads, written into a new tensor part by part, and tables of compressed keys.

nemo-automodel 0.7.0 `components/models/deepseek_v4/layers.py`, _apply_partial_rope_interleaved and
DeepseekV4RotaryEmbedding. The stem's tables are bf16; what is turned is cast to fp32, with a table of its own.
"""

from __future__ import annotations

from simcore.operators.automodel.compressed.pieces import part, write
from simcore.operators.shared import aten
from simcore.operators.shared.aten import new
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["tables_of_keys", "turned"]


def turned(tape: Tape, x: Tensor, rope: int, batch: int, rows: int) -> Tensor:
    """Heads `x` [..., d] whose last `rope` dimensions are rotated in pairs, in x's shape.

    `batch`, `rows`: of the tables, which have one row for each token of a sequence, or each compressed key.
    """
    half = (*x.shape[:-1], rope // 2)
    plain = part(tape, x, (*x.shape[:-1], x.shape[-1] - rope))
    narrow = part(tape, x, (*x.shape[:-1], rope))
    pairs = aten.cast(tape, narrow, "fp32")
    first, second = part(tape, pairs, half), part(tape, pairs, half)
    cos, sin = (new(tape, (batch, rows, rope // 2), "fp32", name, batch * rows * rope) for name in ("cos", "sin"))
    table = (batch, *[1] * (len(half) - 3), rows, rope // 2)
    cos, sin = cos.view(*table), sin.view(*table)
    out = tape.empty(x.shape, x.dtype, "rotary")
    if plain.shape[-1]:
        write(tape, out, plain)
    write(tape, out, aten.sub(tape, aten.mul(tape, first, cos), aten.mul(tape, second, sin)))
    write(tape, out, aten.add(tape, aten.mul(tape, first, sin), aten.mul(tape, second, cos)))
    return out


def tables_of_keys(tape: Tape, batch: int, count: int, rope: int, dtype: str) -> list[Tensor]:
    """Cosines and sines [batch, keys, rope] of compressed keys, and their positions; the caller holds them all."""
    places = new(tape, (count,), "int64", "positions")
    for _ in range(2):  # times the tokens of one, from the first
        places = new(tape, (count,), "int64", "positions", places.nbytes)
    shape = (batch, count, rope)
    wide = [new(tape, (batch, 1, count), "fp32", "positions_fp32", places.nbytes)]
    wide.append(new(tape, (batch, rope // 2, count), "fp32", "angles", wide[0].nbytes, Kernel.GEMM))
    wide.append(new(tape, shape, "fp32", "angles", wide[1].nbytes))
    for _ in range(2):
        turned_by = new(tape, shape, "fp32", "angles", wide[2].nbytes)
        wide.append(new(tape, shape, "fp32", "angles", turned_by.nbytes))
        del turned_by
    made = [new(tape, shape, dtype, name, wide[3].nbytes) for name in ("rotary_cos", "rotary_sin")]
    return [places, *made]
