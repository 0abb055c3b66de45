"""Attention of transformers 5.23's Qwen3-Next and Qwen3.5, whose output a sigmoid weighs (`Qwen3NextAttention`)."""

from __future__ import annotations

from simcore.models.blocks import Attention, Branch
from simcore.operators.hf.layers import Core, Inputs, core_of, linear, rotate_a_part
from simcore.operators.shared import aten
from simcore.operators.shared.rms_norm import rms_norm_from_zero
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["attention"]


def attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, core: Core | None) -> Tensor:
    """Output of attention for `inputs.hidden`, in its shape.

    `core`: attention without its projections, None for `core_of`. The query's projection has the gate in the second
    half of each head; norms of query and key multiply by one more than their weight.
    """
    block, name = branch.block, branch.name
    assert isinstance(block, Attention)
    assert inputs.cos is not None
    assert inputs.sin is not None
    x, dim = inputs.hidden, block.head_dim
    both = aten.to_heads(tape, linear(tape, run, f"{name}.q_proj", x), 2 * dim)
    q, gate = aten.chunk(tape, both)
    del both
    gate = aten.contiguous(tape, gate, "gate").view(*x.shape[:2], block.q_size)
    q = rms_norm_from_zero(tape, run.params[f"{name}.q_norm.weight"], q)
    k = aten.to_heads(tape, linear(tape, run, f"{name}.k_proj", x), dim, copy_grad=True)
    k = rms_norm_from_zero(tape, run.params[f"{name}.k_norm.weight"], k)
    v = aten.to_heads(tape, linear(tape, run, f"{name}.v_proj", x), dim, copy_grad=core is not None)
    q, k = rotate_a_part(tape, q, k, inputs.cos, inputs.sin)
    out = core(q, k, v) if core else core_of(tape, run, block, (q, k, v), inputs.mask)
    out = aten.contiguous(tape, out, "attention")  # lies by heads, as joined queries do
    out = aten.mul(tape, out.view(*out.shape[:2], block.q_size), aten.sigmoid(tape, gate), "gated")
    return linear(tape, run, f"{name}.o_proj", out)
