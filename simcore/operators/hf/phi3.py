"""Phi-3 in transformers 5.23 (`models/phi3/modeling_phi3.py`): what differs from Llama.

Query, key and value are slices of one product, whose gradients are each written into zeros of the whole. What is
rotated is joined with what is not, even where that is nothing; the result is in the order of heads.
"""

from __future__ import annotations

from simcore.models.blocks import Attention, Branch
from simcore.operators.hf.layers import Core, Inputs, core_of, linear, rotate, runs_math
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["attention", "mlp"]


def attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, core: Core | None = None) -> Tensor:
    """Output of `Phi3Attention` for `inputs.hidden`, in its shape.

    `core`: attention without its projections, None for `core_of`.
    """
    block, name = branch.block, branch.name
    assert isinstance(block, Attention)
    assert inputs.cos is not None
    assert inputs.sin is not None
    qkv = linear(tape, run, f"{name}.qkv_proj", inputs.hidden)
    q, k, v = (aten.slice_last(tape, qkv, size) for size in (block.q_size, block.kv_size, block.kv_size))
    q, k = (aten.to_heads(tape, x, block.head_dim, copy_grad=True) for x in (q, k))
    v = aten.to_heads(tape, v, block.head_dim, copy_grad=core is not None or runs_math(run, block, inputs.mask))
    q, k = _rotated(tape, q, k, inputs.cos, inputs.sin)
    out = core(q, k, v) if core else core_of(tape, run, block, (q, k, v), inputs.mask)
    out = out if core else aten.contiguous(tape, out, "attention")
    return linear(tape, run, f"{name}.o_proj", out.view(*out.shape[:2], block.q_size))


def _rotated(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q_turned, q_rest = _parts(tape, q, cos.shape[-1])
    k_turned, k_rest = _parts(tape, k, cos.shape[-1])
    q_out = aten.cat(tape, rotate(tape, q_turned, cos, sin), q_rest)
    k_out = aten.cat(tape, rotate(tape, k_turned, cos, sin), k_rest)
    return q_out, k_out


def _parts(tape: Tape, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """A slice of everything is the tensor itself (torch 2.13 `TensorIndexing.h`, applySlice)."""
    dim = x.shape[-1]
    return (x if size == dim else aten.slice_last(tape, x, size)), aten.slice_last(tape, x, dim - size)


def mlp(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    """Output of `Phi3MLP` for `x` [..., hidden], in x's shape; `name`: the module in the layer.

    Gate and up, halves of one product, both live until it returns.
    """
    gate, up = aten.chunk(tape, linear(tape, run, f"{name}.gate_up_proj", x))
    up = aten.mul(tape, up, aten.silu(tape, gate))
    return linear(tape, run, f"{name}.down_proj", up)
