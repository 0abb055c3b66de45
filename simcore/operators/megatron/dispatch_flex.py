"""`MoEFlexTokenDispatcher` with DeepEP or HybridEP: a token crosses once for each rank that it goes to.

megatron-core 0.16.1 `transformer/moe/token_dispatcher.py`, `fused_a2a.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simcore.models.blocks import Moe
from simcore.operators.megatron.grouped_mlp import expert_layers, grouped_mlp
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.rows import HELD, Rows
from simcore.operators.megatron.stash import rows_with_room
from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["distinct_ranks", "flex"]


def distinct_ranks(block: Moe, ep: int) -> float:
    """Average number of ranks that a token is sent to: ranks that hold at least one of its experts.

    Equal to the rows that each rank receives for each token it has. All experts of a token are in a few groups
    (`moe_utils.py`, group_limited_topk), which lie on neighbouring ranks.
    """
    groups, few = block.num_groups, block.chosen_groups
    size, held = block.num_experts // groups, max(1, groups // ep)
    here, reached = min(size, block.num_experts // ep), few * size
    missed = sum(math.comb(held, j) * math.comb(groups - held, few - j) * math.comb(reached - j * here, block.top_k)
                 for j in range(min(held, few) + 1))
    return ep * (1 - missed / math.comb(groups, few) / math.comb(reached, block.top_k))


def flex(c: Context, block: Moe, rows: Rows, x: Tensor, probs: Tensor) -> Tensor:
    """Output of the routed experts for `x` [tokens, hidden], in x's shape (`MoEFlexTokenDispatcher`).

    A token crosses once for each rank, and is copied for its experts there. `probs`: [tokens, all experts]. Metadata is
    an estimate (20 %, 0.3 % of what a layer keeps). HybridEP is taken to be equal. The communication buffers come from
    cudaMalloc, so PyTorch does not see them (`token_dispatcher.py`, `fused_a2a.py`). Probabilities are sent in fp32
    whatever the router's format (core 0.16.1 `token_dispatcher.py:1034`). In fp8 HybridEP puts rows where they are
    padded at once (`:1036`), and there is nothing left to pad for the experts. With a capacity of the rank there is
    room for a number of rows: [Note: paged stash] in `stash.py`.
    """
    t, e, k, h, ep = rows.tokens, block.num_experts, block.top_k, block.expert_hidden, c.run.ep
    pads = c.scaling is not None and c.options.moe_flex_dispatcher_backend == "hybridep"
    here = min(ep, distinct_ranks(block, ep) * rows.received / (t * k))
    landed = int(t * here)
    metadata = int(t * (12 * k + 5 * ep + 4 * here + here * (e // ep) + here * k)) + 32 * rows.received
    c.held["metadata"] = c.new(metadata, 1, "dispatch_metadata", "uint8", HELD)
    received = _crossed(c, (x, aten.cast(c.tape, probs, "fp32")), (t, e), landed, "dispatched")
    if pads:
        computed = c.padded_rows(rows.computed, rows.local_experts)
        rows = replace(rows, computed=computed, room=rows_with_room(
            c.local, block.top_k, c.options.moe_expert_rank_capacity_factor))
    ordered, weights = _expanded(c, rows, received, e // ep, h)
    out = (expert_layers if pads else grouped_mlp)(c, block, rows, ordered, weights)
    folded = _folded(c, out, rows.computed, landed, h)
    del out
    return _crossed(c, (folded,), (landed, 0), t, "combined")


def _crossed(c: Context, inputs: tuple[Tensor, ...], shape: tuple[int, int], rows: int, name: str) -> Tensor:
    """One of DeepEP's two exchanges; in backward it is the other one."""
    (before, spread), h = shape, inputs[0].shape[1]
    payload = max(rows, before) * h * c.size

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grads: list[Tensor | None] = [c.new(before, h, f"grad_{name}")]
        c.tape.collective("all_to_all", c.run.ep_axis, payload, c.dtype)
        return [*grads, c.new(before, spread, "grad_probs", "fp32")] if spread else grads

    out = c.new(rows, h, name)
    c.tape.collective("all_to_all", c.run.ep_axis, payload, c.dtype)
    c.node(out, inputs, (c.held["metadata"],), back)
    return out


def _expanded(c: Context, rows: Rows, x: Tensor, experts: int, h: int) -> tuple[Tensor, Tensor]:
    """Received tokens copied in the order of the local experts (`permute`, fused), gathered over etp."""
    landed = x.shape[0]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(landed, h, "grad_permute")
        c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (rows.computed + landed))
        return [grad]

    row_map = c.new(landed, 2 * experts + 1, "row_id_map", "int32", HELD)
    out, weights = c.new(rows.held, h, "sorted"), c.new(rows.held, 1, "sorted_probs", "fp32")
    c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (rows.computed + landed))
    c.node(out, (x,), (row_map,), back)
    weights.node, weights.output = out.node, 1
    c.held["row_map"] = row_map
    return out, weights


def _folded(c: Context, x: Tensor, n: int, landed: int, h: int) -> Tensor:
    """Rows of the same token summed before they go back; `n` of `x` hold one."""
    held = x.shape[0]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(held, h, "grad_unpermute")
        c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (n + landed))
        return [grad]

    out = c.new(landed, h, "unpermuted")
    c.tape.compute(Kernel.PERMUTE, 0, c.size * h * (n + landed))
    c.node(out, (x,), (c.held["row_map"],), back)
    return out
