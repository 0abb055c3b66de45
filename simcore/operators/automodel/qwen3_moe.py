"""Attention of NeMo Automodel's Qwen3-MoE (nemo-automodel 0.7.0, `components/models/qwen3_moe/layers.py`).

Grouped-query attention by TE where it is installed, with a norm over each head of query and key. GLM-4.5's, where the
norms may be missing and the projections biased, Ling's, and MiniMax-M2's, whose norms come before the heads, run the
same operators (`models/{glm4_moe,ling_v2,minimax_m2}/layers.py`); a rotated part of a head is joined with the rest
inside the rotation. Query and key are
rotated in one compiled function (`components/models/gpt_oss/rope_utils.py`, apply_rotary_emb_qk), which keeps
only its tables, and they are the stem's.
"""

from __future__ import annotations

from simcore.models.blocks import Attention
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, norm, te_attention
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.recording.tape import Tape, Tensor

__all__ = ["qwen3_moe_attention", "rotated"]


def qwen3_moe_attention(env: Env, x: Tensor, block: Attention, path: str) -> Tensor:
    """Attention (`Qwen3MoeAttention._forward_impl`) of `x` [batch, sequence, hidden]; returns x's shape.

    `path`: name of the attention module in the layer. The caller adds the residual.
    """
    tape = env.tape
    q, k, v = (linear(env, x, f"{path}.{part}_proj") for part in "qkv")
    if block.whole_norms:
        q = norm(env, q, f"{path}.q_norm")
        k = norm(env, k, f"{path}.k_norm")
    q, k, v = (aten.to_heads(tape, part, block.head_dim) for part in (q, k, v))
    if block.qk_norm and not block.whole_norms:
        q = norm(env, q, f"{path}.q_norm")
        k = norm(env, k, f"{path}.k_norm")
    q, k = rotated(tape, q, k)
    out = te_attention(env, q, k, v)
    return linear(env, out.view(*x.shape[:2], block.q_size), f"{path}.o_proj")


def rotated(tape: Tape, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key [batch, sequence, heads, d] rotated at once, into new tensors; their gradients too."""
    shapes, dtype, moved = (q.shape, k.shape), q.dtype, q.nbytes + k.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, shape, dtype, "grad_rotary", moved) for shape in shapes]

    node = tape.node((q, k), (), backward)
    made = [new(tape, shape, dtype, "rotary", moved) for shape in shapes]
    return Tensor(made[0].storage, shapes[0], dtype, node), Tensor(made[1].storage, shapes[1], dtype, node, 1)
