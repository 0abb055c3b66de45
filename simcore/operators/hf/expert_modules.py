"""Loops over experts that are modules of linears, and what the loops share.

[Note: the experts of transformers 4]
4.57.1 `models/qwen3_moe/modeling_qwen3_moe.py`, Qwen3MoeSparseMoeBlock.forward; `models/mixtral/modeling_mixtral.py` is
line for line like it. The loop runs over the experts that have any tokens, whose numbers it asks the device for. Of each
it copies its mask, whose entries `torch.where` finds; rows are taken, run through the expert, weighted in the compute
dtype and added in place, and `index_add_` keeps what it adds. The router's logits are returned and live until the
layer returns. Routing is balanced: an expert has its even share of rows, which must be one at least.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Moe
from simcore.operators.hf.layers import swiglu
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["LINEARS", "experts", "index_add_", "joined", "params_of_one", "picked", "share_of"]

LINEARS: Final = {"qwen3_moe": ("gate_proj", "up_proj", "down_proj"), "mixtral": ("w1", "w3", "w2")}
"""Names of an expert's linears, by family: of gate, up and down."""


def experts(tape: Tape, run: LayerWorkload, name: str, block: Moe, hidden: Tensor, indices: Tensor,
            weights: Tensor) -> Tensor:
    """Output of the routed experts for rows `hidden` [tokens, hidden size], in its shape.

    [Note: the experts of transformers 4]. `indices`, `weights` (compute dtype): numbers and weights of the chosen
    experts, [tokens, top_k]. Raises NotYet for fewer rows than experts.
    """
    one, path = replace(run, params=params_of_one(run, name)), f"{name}.experts"
    linears = next(names for names in LINEARS.values() if f"{path}.{names[0]}.weight" in run.params)
    final = aten.new(tape, hidden.shape, hidden.dtype, "final")
    one_hot = aten.new(tape, (*indices.shape, block.num_experts), "int64", "expert_mask", indices.nbytes)
    _hit = _numbers_of_hit(tape, one_hot, block.num_experts)
    for expert in range(block.num_experts):
        tape.stop()  # the expert's number is read
        mask = aten.new(tape, indices.shape, "int64", "mask", indices.nbytes, Kernel.PERMUTE)
        tape.stop()  # torch.where says how many rows it found
        found = aten.new(tape, (share_of(run, block, expert), 2), "int64", "found", mask.nbytes)
        del mask
        token = Tensor(found.storage, found.shape[:1], "int64")
        rows = aten.index(tape, hidden, token, "dispatched")
        out = swiglu(tape, one, [f"{path}.{linear}" for linear in linears], rows)
        own = picked(tape, weights, token)
        weighted = aten.mul_rows(tape, out, own, "weighted")
        del out, own
        index_add_(tape, final, token, weighted)
    return final


def _numbers_of_hit(tape: Tape, one_hot: Tensor, count: int) -> Tensor:
    tokens = aten.new(tape, (count,), "int64", "tokens_per_expert", one_hot.nbytes)
    is_hit = aten.new(tape, (count,), "uint8", "is_hit", tokens.nbytes)
    del tokens
    tape.stop()
    return aten.new(tape, (count, 1), "int64", "hit", is_hit.nbytes)


# ---- of any loop -----------------------------------------------------------------------------------------------------
def share_of(run: LayerWorkload, block: Moe, expert: int) -> int:
    """Number of rows of expert number `expert` where tokens are spread evenly.

    Raises NotYet where an expert would have none.
    """
    rows = run.tokens * block.top_k
    if rows < block.num_experts:
        raise NotYet(Problem("training.seq_len", f"not yet: {rows} routed rows for {block.num_experts} experts: one "
                             "that gets none is left out, or is run on a row of zeros"))
    return rows * (expert + 1) // block.num_experts - rows * expert // block.num_experts


def params_of_one(run: LayerWorkload, name: str) -> dict[str, Param]:
    """Parameters of one expert of the MoE block `name`, by name; they are those of every other."""
    return {key: replace(param, shape=param.shape[1:]) for key, param in run.params.items()
            if key.startswith(f"{name}.experts.")}


def picked(tape: Tape, weights: Tensor, token: Tensor) -> Tensor:
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


def index_add_(tape: Tape, into: Tensor, rows: Tensor, x: Tensor) -> None:
    """`into.index_add_(0, rows, x)`: the gradient passes to what was there, x gets its rows of it and is kept.

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
