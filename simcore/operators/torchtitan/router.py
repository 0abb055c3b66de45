"""Router and reorderer of torchtitan 0.2.2's experts (`models/moe/moe.py`): the experts of each token, and their order.

Scores are in fp32, weights too; the balancing bias is added to the scores for the choice alone.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["reorder", "route"]


def route(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(fp32 weights [t, k], int64 numbers [t, k] of the chosen experts, tokens of each expert [e]) for `x` [t, hidden].

    `TokenChoiceTopKRouter.forward`. Per-operator checkpoints neither keep nor count the gate
    (per_op_sac_force_recompute_mm_shapes_by_fqns).
    """
    scores = aten.linear(tape, x, run.params["moe.router.gate.weight"], "router_gate",
                         bias=run.params.get("moe.router.gate.bias"), operator="gate")
    wide = aten.cast(tape, scores, "fp32")
    scores = aten.sigmoid(tape, wide) if block.router == "sigmoid" else aten.softmax(tape, wide)
    del wide
    choice = aten.add_scalar(tape, scores)
    if block.num_groups > 1:
        choice = _limited(tape, block, choice)
    _highest, indices = aten.topk(tape, choice, block.top_k)
    weights = aten.gather(tape, scores, indices)
    if block.normalised:
        divisor = aten.add_scalar(tape, aten.sum_last(tape, weights, keepdim=True))
        weights = aten.div(tape, weights, divisor)
    weights = aten.mul_scalar(tape, weights)
    return weights, indices, _counts(tape, block)


def _limited(tape: Tape, block: Moe, choice: Tensor) -> Tensor:
    """`_get_node_limited_routing_scores`: scores [t, e] without those of groups that are not chosen."""
    rows, groups = choice.shape[0], block.num_groups
    best, _places = aten.topk(tape, choice.view(rows, groups, block.num_experts // groups), 2)
    scores = aten.sum_last(tape, best)
    _places, _chosen = aten.topk(tape, scores, block.chosen_groups)
    mask = aten.select(tape, scores, (rows, groups), "uint8", "group_mask")
    return aten.masked_fill(tape, choice, mask)


def _counts(tape: Tape, block: Moe) -> Tensor:
    return tape.empty((block.num_experts,), "int64", "tokens_per_expert")


def reorder(tape: Tape, block: Moe, weights: Tensor, indices: Tensor, *, parts: int) -> tuple[Tensor, Tensor, Tensor]:
    """(sorted weights, order, both [rows], tokens of each expert [e]) of rows that go to experts.

    `TokenReorderer.forward`. `parts`: ranks among which tokens are dealt (ReordererSequenceParallel), 1 for none.
    """
    rows = weights.numel // parts
    counts = _counts(tape, block)
    mine, chosen = (Tensor(x.storage, (rows,), x.dtype, x.node) for x in (weights, indices))
    order = aten.sort(tape, chosen)
    picked = aten.index(tape, mine, order, "sorted_weights")
    if parts > 1:
        order = aten.select(tape, order, (rows,), "int64", "order_of_all")
    return picked, order, counts
