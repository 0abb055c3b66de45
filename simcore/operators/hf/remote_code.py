"""Operators of modelling code other than transformers 5.23's: of Nemotron-3-Nano's repository, and of transformers 4.

[Note: eager attention of the hub's code]
The class for `eager` in `modeling_nemotron_h.py` is not eager: it repeats keys and values for every head and calls
SDPA, and so does that for `sdpa`. The causal mask that the model makes is never passed to it (NemotronHBlock.forward
calls the mixer with only the hidden state and positions), so SDPA is called with `is_causal` and runs flash attention.
No probabilities are kept.

[Note: the hub's experts]
NemotronHMOE.moe loops over all experts, as the first DeepSeek-V3 did. Sums and weighted rows are in fp32, the type of
the router's weights; each expert's rows are weighted in a new tensor, which `index_add_` keeps. Routing is balanced: an
expert has its even share of rows, which must be one at least.

[Note: packed experts under autocast]
Autocast of CUDA computes the router's product in the narrow type, and so scores, weights and sums over experts are in
it; it squares in fp32 (torch.square is a power: torch 2.13 `ATen/autocast_mode.h`, AT_FORALL_FP32; a CPU's leaves
powers). A linear of 16 bits narrows that again, one of bitsandbytes returns the type of its input (0.50.2
`nn/modules.py`, Linear4bit.forward: `.to(inp_dtype)`): fp32, which `index_add_` does not add to a narrow sum. Such a
job stops (`frameworks/common/expert_modules.py`).

[Note: the experts of transformers 4]
4.57.1 `models/qwen3_moe/modeling_qwen3_moe.py`, Qwen3MoeSparseMoeBlock.forward; `models/mixtral/modeling_mixtral.py` is
line for line like it. The loop runs over the experts that have any tokens, whose numbers it asks the device for. Of
each it copies its mask, whose entries `torch.where` finds; rows are taken, run through the expert, weighted in the
compute dtype and added in place, and `index_add_` keeps what it adds. The router's logits are returned and live until
the layer returns. Routing is balanced: an expert has its even share of rows, which must be one at least.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Mlp, Moe
from simcore.operators.hf.autocast import set_apart
from simcore.operators.hf.layers import Core, has_flash_attention, mlp, swiglu
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["LINEARS", "causal_mask", "core", "experts", "experts_of_four", "joined", "shifted"]

LINEARS: Final = {"qwen3_moe": ("gate_proj", "up_proj", "down_proj"), "mixtral": ("w1", "w3", "w2")}
"""Names of an expert's linears, by family: of gate, up and down."""


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
    one, path = replace(run, params=_params_of_one(run, name)), f"{name}.experts"
    shape = Mlp(block.hidden, block.expert_ffn, gated=False)
    final = aten.new(tape, hidden.shape, weights.dtype, "final")
    # All experts' masks are views of it, it lives until the loop is over.
    _one_hot = aten.new(tape, (*indices.shape, block.num_experts), "int64", "expert_mask", indices.nbytes)
    for expert in range(block.num_experts):
        tape.stop()  # torch.where tells how many rows it found
        share = _share_of(run, block, expert)
        # Both numbers of every entry found are columns of one tensor.
        found = aten.new(tape, (share, 2), "int64", "found", _one_hot.nbytes // block.num_experts)
        token = Tensor(found.storage, (share,), "int64")
        own = _picked(tape, weights, token)
        rows_in = aten.index(tape, hidden, token, "dispatched")
        out = mlp(tape, one, path, shape, rows_in)
        set_apart(tape, one.params, expert)
        weighted = aten.mul_rows(tape, out, own, "weighted")
        _index_add_(tape, final, token, weighted)
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


# ---- transformers 4 --------------------------------------------------------------------------------------------------
def experts_of_four(tape: Tape, run: LayerWorkload, name: str, block: Moe, hidden: Tensor, indices: Tensor,
            weights: Tensor) -> Tensor:
    """Output of the routed experts for rows `hidden` [tokens, hidden size], in its shape.

    [Note: the experts of transformers 4]. `indices`, `weights` (compute dtype): numbers and weights of the chosen
    experts, [tokens, top_k]. Raises NotYet for fewer rows than experts.
    """
    one, path = replace(run, params=_params_of_one(run, name)), f"{name}.experts"
    linears = next(names for names in LINEARS.values() if f"{path}.{names[0]}.weight" in run.params)
    final = aten.new(tape, hidden.shape, hidden.dtype, "final")
    one_hot = aten.new(tape, (*indices.shape, block.num_experts), "int64", "expert_mask", indices.nbytes)
    _hit = _numbers_of_hit(tape, one_hot, block.num_experts)
    for expert in range(block.num_experts):
        tape.stop()  # the expert's number is read
        mask = aten.new(tape, indices.shape, "int64", "mask", indices.nbytes, Kernel.PERMUTE)
        tape.stop()  # torch.where says how many rows it found
        found = aten.new(tape, (_share_of(run, block, expert), 2), "int64", "found", mask.nbytes)
        del mask
        token = Tensor(found.storage, found.shape[:1], "int64")
        rows = aten.index(tape, hidden, token, "dispatched")
        out = swiglu(tape, one, [f"{path}.{linear}" for linear in linears], rows)
        own = _picked(tape, weights, token)
        weighted = aten.mul_rows(tape, out, own, "weighted")
        del out, own
        _index_add_(tape, final, token, weighted)
    return final


def _numbers_of_hit(tape: Tape, one_hot: Tensor, count: int) -> Tensor:
    tokens = aten.new(tape, (count,), "int64", "tokens_per_expert", one_hot.nbytes)
    is_hit = aten.new(tape, (count,), "uint8", "is_hit", tokens.nbytes)
    del tokens
    tape.stop()
    return aten.new(tape, (count, 1), "int64", "hit", is_hit.nbytes)


# ---- of any loop -----------------------------------------------------------------------------------------------------
def _share_of(run: LayerWorkload, block: Moe, expert: int) -> int:
    """Number of rows of expert number `expert` where tokens are spread evenly.

    Raises NotYet where an expert would have none.
    """
    rows = run.tokens * block.top_k
    if rows < block.num_experts:
        raise NotYet(Problem("training.seq_len", f"not yet: {rows} routed rows for {block.num_experts} experts: one "
                             "that gets none is left out, or is run on a row of zeros"))
    return rows * (expert + 1) // block.num_experts - rows * expert // block.num_experts


def _params_of_one(run: LayerWorkload, name: str) -> dict[str, Param]:
    """Parameters of one expert of the MoE block `name`, by name; they are those of every other."""
    return {key: replace(param, shape=param.shape[1:]) for key, param in run.params.items()
            if key.startswith(f"{name}.experts.")}


def _picked(tape: Tape, weights: Tensor, token: Tensor) -> Tensor:
    """`weights[token, place]`: one number a row, for row numbers `token`; the gradient is put into zeros of the whole.

    The node saves both index tensors, which are columns of one.
    """
    shape, dtype = weights.shape, weights.dtype

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        zeros = aten.new(tape, shape, dtype, "zeros")
        return [aten.new(tape, shape, dtype, "grad_row_weights", zeros.nbytes, Kernel.PERMUTE)]

    node = tape.node((weights,), (token, token), backward)
    out = aten.new(tape, token.shape, dtype, "row_weights", 2 * token.nbytes, Kernel.PERMUTE)
    out.node = node
    return out


def _index_add_(tape: Tape, into: Tensor, rows: Tensor, x: Tensor) -> None:
    """`into._index_add_(0, rows, x)`: the gradient passes to what was there, x gets its rows of it and is kept.

    torch 2.13 `tools/autograd/derivatives.yaml`, index_add: x's shape is read from x itself.
    """
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((into, x), (rows, x), lambda tape, grads, saved: [
        grads[0], aten.new(tape, shape, dtype, "grad_weighted", num_bytes, Kernel.PERMUTE)])
    tape.compute(Kernel.PERMUTE, x.numel, 3 * num_bytes)
    into.node = node


def joined(grads: tuple[tuple[Param, int, int], ...], run: LayerWorkload) -> tuple[tuple[Param, int, int], ...]:
    """Gradients (parameter, slot, bytes) of a layer, those of one linear of all experts as one.

    A loop over experts leaves them one after the other, with the same name and slot.
    """
    order = {name: place for place, name in enumerate(dict.fromkeys(param.name for param, _, _ in grads))}
    found = groupby(sorted(grads, key=lambda grad: order[grad[0].name]), lambda grad: (grad[0].name, grad[1]))
    return tuple((run.params[name], slot, sum(num_bytes for _, _, num_bytes in same)) for (name, slot), same in found)
