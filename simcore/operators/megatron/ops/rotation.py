"""Rotation of query and key by the angles of each token, which TransformerEngine's kernel does not know.

Megatron-Bridge 067f987d `models/qwen_vl/modelling_qwen3_vl/rope.py:453` (apply_rotary_pos_emb_absolute) over core's
`_apply_rotary_pos_emb_bshd`: cosines and sines are made for each of query and key, and kept by its products. The tower
rotates in fp32 (`transformer_config.py`, apply_rotary_pos_emb_in_fp32).
"""

from __future__ import annotations

from typing import Final

from simcore.models.placed_blocks import PlacedLayer
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["turned_by_token"]

_PASSES: Final = (12, 14)
"""Reads and writes of a tensor by the operators of the rotation, forward and backward (`attention.turning_passes`)."""
_OPERATORS: Final = (12, 8)


def turned_by_token(c: Context, x: Tensor, name: str, rotated: int, head_dim: int) -> Tensor:
    """`x` [rows, heads x head_dim] rotated, in a new tensor like it; `rotated`: of the elements of a head.

    Keeps cosines and sines [rows, rotated].
    """
    (rows, columns), share = x.shape, rotated / head_dim
    wide = "fp32" if isinstance(c.kind.block, PlacedLayer) else c.dtype

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        held = [c.new(rows, columns, f"grad_{name}.{part}", wide) for part in ("cos", "sin")]
        grad = c.new(rows, columns, f"grad_{name}")
        _compute(c, grad, share, wide, is_backward=True)
        held.clear()
        return [grad]

    given = [c.new(rows, columns, f"{name}.wide", wide)] if wide != c.dtype else []
    tables = [c.new(rows, rotated, f"{name}.{part}", wide) for part in ("cos", "sin")]
    parts = [c.new(rows, columns, f"{name}.{part}", wide) for part in ("by_cos", "by_sin")]
    out = c.new(rows, columns, name)
    _compute(c, out, share, wide, is_backward=False)
    given.clear()
    parts.clear()
    c.node(out, (x,), tables, back)
    return out


def _compute(c: Context, x: Tensor, share: float, wide: str, *, is_backward: bool) -> None:
    """The part of each head that stays is copied once; in a wider type both ends are cast."""
    size = x.numel * dtype_bytes(wide)
    casts = 2 * (size + x.nbytes) if wide != x.dtype else 0
    moved = round((2 + (_PASSES[is_backward] - 2) * share) * size)
    c.tape.compute(Kernel.ELEMENTWISE, x.numel, moved + casts, _OPERATORS[is_backward] + 2 * (casts > 0))
