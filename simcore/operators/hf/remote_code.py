"""Operators of `modeling_nemotron_h.py` of Nemotron-3-Nano's repository that differ from those of transformers 5.23.

[Note: eager attention of the hub's code]
Its class for `eager` is not eager: it repeats keys and values for every head and calls SDPA, and so does that for
`sdpa`. The causal mask that the model makes is never passed to it (NemotronHBlock.forward calls the mixer with only the
hidden state and positions), so SDPA is called with `is_causal` and runs flash attention. No probabilities are kept.

[Note: the hub's experts]
NemotronHMOE.moe loops over all experts, as the first DeepSeek-V3 did. Sums and weighted rows are in fp32, the type of
the router's weights; each expert's rows are weighted in a new tensor, which `index_add_` keeps. Routing is balanced: an
expert has its even share of rows, which must be one at least.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Mlp, Moe
from simcore.operators.hf.expert_modules import index_add_, params_of_one, picked, share_of
from simcore.operators.hf.layers import Core, has_flash_attention, mlp
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["causal_mask", "core", "experts", "shifted"]


def causal_mask(tape: Tape, run: LayerWorkload) -> Tensor:
    """Causal mask [seq, seq] in the compute dtype (`_update_causal_mask`).

    It is filled, then its upper triangle is kept, then it is made 0 where a key comes no later.
    """
    filled = aten.new(tape, (run.seq, run.seq), run.compute, "filled")
    mask = aten.new(tape, filled.shape, run.compute, "causal_mask", filled.nbytes)
    del filled
    later = aten.new(tape, mask.shape, "uint8", "is_later")
    tape.compute(Kernel.ELEMENTWISE, mask.numel, 2 * mask.nbytes + later.nbytes)
    return mask


def core(tape: Tape, run: LayerWorkload) -> Core:
    """Attention function: (query, key, value), each [b, s, heads, d], to the output in query's shape.

    It repeats keys and values for every head, then runs SDPA or flash-attn ([Note: eager attention of the hub's code]).
    """
    def of(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = aten.repeat_heads(tape, k, q.shape[2] // k.shape[2])
        v = aten.repeat_heads(tape, v, q.shape[2] // v.shape[2])
        if has_flash_attention(run):
            return aten.flash_attention(tape, q, k, v, run.pairs, run.sequences)
        return aten.scaled_dot_product_attention(tape, q, k, v)

    return of


def experts(tape: Tape, run: LayerWorkload, name: str, block: Moe, hidden: Tensor, indices: Tensor,
            weights: Tensor) -> Tensor:
    """Output of the routed experts for rows `hidden` [tokens, hidden size], in its shape.

    One expert after another runs on its even share of rows ([Note: the hub's experts]). `indices`, `weights` (fp32):
    numbers and weights of the chosen experts, [tokens, top_k]. Raises NotYet for fewer rows than experts.
    """
    one, path = replace(run, params=params_of_one(run, name)), f"{name}.experts"
    shape = Mlp(block.hidden, block.expert_ffn, gated=False)
    final = aten.new(tape, hidden.shape, weights.dtype, "final")
    # All experts' masks are views of it, it lives until the loop is over.
    _one_hot = aten.new(tape, (*indices.shape, block.num_experts), "int64", "expert_mask", indices.nbytes)
    for expert in range(block.num_experts):
        tape.stop()  # torch.where tells how many rows it found
        share = share_of(run, block, expert)
        # Both numbers of every entry found are columns of one tensor.
        found = aten.new(tape, (share, 2), "int64", "found", _one_hot.nbytes // block.num_experts)
        token = Tensor(found.storage, (share,), "int64")
        own = picked(tape, weights, token)
        rows_in = aten.index(tape, hidden, token, "dispatched")
        out = mlp(tape, one, path, shape, rows_in)
        weighted = aten.mul_rows(tape, out, own, "weighted")
        index_add_(tape, final, token, weighted)
    return aten.cast(tape, final, hidden.dtype)


def shifted(tape: Tape, logits: Tensor) -> Tensor:
    """`logits[..., :-1, :].contiguous()` of [b, s, vocab]: [b, s - 1, vocab].

    It is a copy if there are several sequences, else a view. The gradient is written into zeros of the whole shape.
    """
    shape, dtype = logits.shape, logits.dtype
    size = (shape[0], shape[1] - 1, shape[2])
    node = tape.node((logits,), (), lambda tape, grads, saved: [aten.new(tape, shape, dtype, "grad_logits")])
    if shape[0] == 1:
        return Tensor(logits.storage, size, dtype, node)
    out = aten.new(tape, size, dtype, "shifted_logits", logits.nbytes, Kernel.COPY)
    out.node = node
    return out
