"""Norms and attention of transformers 5.23's OLMo 2 (`models/olmo2`).

A norm multiplies by its weight in fp32 without a cast of it. Query and key pass their norms before they are cut into
heads. The tables are fp32, and so is the rotation, whose results are cast back when both are there; where FSDP2's hook
casts a layer's inputs, both are in the compute dtype.
"""

from __future__ import annotations

from simcore.models.blocks import Attention, Branch
from simcore.operators.hf.layers import Core, Inputs, core_of, linear, rotate
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["attention", "norm"]


def norm(tape: Tape, weight: Param, x: Tensor) -> Tensor:
    """RMSNorm of `x` in fp32 (`Olmo2RMSNorm`), in its shape and type."""
    dtype = x.dtype
    x = aten.cast(tape, x, "fp32")
    variance = aten.mean(tape, aten.square(tape, x))
    x = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, variance)))
    return aten.cast(tape, aten.mul(tape, weight, x), dtype)


def attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, core: Core | None) -> Tensor:
    """Output of attention (`Olmo2Attention`) for `inputs.hidden`, in its shape; `core`: as of `layers.attention`."""
    block, name, x = branch.block, branch.name, inputs.hidden
    assert isinstance(block, Attention)
    assert inputs.cos is not None
    assert inputs.sin is not None
    dim = block.head_dim
    query, key = (_normed(tape, run, f"{name}.{part}", x) for part in "qk")
    value = linear(tape, run, f"{name}.v_proj", x)
    query, key = (aten.to_heads(tape, part, dim, copy_grad=True) for part in (query, key))
    value = aten.to_heads(tape, value, dim, copy_grad=core is not None)
    query, key = _rotated(tape, query, key, inputs.cos, inputs.sin)
    out = core(query, key, value) if core else core_of(tape, run, block, (query, key, value), inputs.mask)
    return linear(tape, run, f"{name}.o_proj", out.view(*out.shape[:2], out.shape[2] * dim))


def _rotated(tape: Tape, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the type of the tables, then cast back to their own."""
    dtype = query.dtype
    turned_query, turned_key = rotate(tape, query, cos, sin), rotate(tape, key, cos, sin)
    return aten.cast(tape, turned_query, dtype), aten.cast(tape, turned_key, dtype)


def _normed(tape: Tape, run: LayerWorkload, path: str, x: Tensor) -> Tensor:
    """Query or key; what the norm is given lives until it returns."""
    given = linear(tape, run, f"{path}_proj", x)
    return norm(tape, run.params[f"{path}_norm.weight"], given)
