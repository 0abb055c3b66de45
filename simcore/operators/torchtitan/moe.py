"""Experts of torchtitan 0.2.2 (`models/moe/moe.py`, `models/moe/utils.py`) on one rank: grouped products in bf16.

Rows are sorted by expert and copied once more, every expert's filled up to a multiple of 8; results are put back in the
order of tokens, weighted in fp32 and added up (`score_before_experts=False`, `route_norm=False`, as DeepSeek V3 16B has
it). All experts are here, so how tokens are routed changes no size but what filling up leaves empty.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["moe"]

ALIGNMENT = 8
"""Rows (`models/moe/utils.py`, TOKEN_GROUP_ALIGN_SIZE_M)."""
Grads = list[Tensor | None]


def moe(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> Tensor:
    """Output of the experts (`MoE.forward`) for `x` [b, s, hidden], in x's shape."""
    shape, rows = x.shape, run.tokens * block.top_k
    x = x.view(run.tokens, block.hidden)
    weights, indices, _counted = _route(tape, run, block, x)
    _sorted_weights, order, _counted = _reorder(tape, block, weights, indices)
    routed = aten.index(tape, x, aten.select(tape, order, (rows,), "int64", "tokens"), "dispatched")
    made = _experts(tape, run, block, routed)
    out = _shared_expert(tape, run, x) if block.shared_ffn else None
    unsorted = _put(tape, aten.new(tape, made.shape, made.dtype, "unsorted"), order, made)
    combined = _combined(tape, run, weights, unsorted.view(run.tokens, block.top_k, block.hidden))
    return (combined if out is None else aten.add(tape, out, combined)).view(*shape)


def _route(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`TokenChoiceTopKRouter.forward`: weights, numbers of experts, tokens of each expert.

    Per-operator checkpoints neither keep nor count the gate (per_op_sac_force_recompute_mm_shapes_by_fqns).
    """
    scores = aten.linear(tape, x, run.params["moe.router.gate.weight"], "router_gate", operator="gate")
    scores = aten.softmax(tape, aten.cast(tape, scores, "fp32"))
    choice = aten.add_scalar(tape, scores)
    _highest, indices = aten.topk(tape, choice, block.top_k)
    weights = aten.gather(tape, scores, indices)
    weights = aten.mul_scalar(tape, weights)
    return weights, indices, _counts(tape, block)


def _counts(tape: Tape, block: Moe) -> Tensor:
    return tape.empty((block.num_experts,), "int64", "tokens_per_expert")


def _reorder(tape: Tape, block: Moe, weights: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`TokenReorderer.forward`."""
    rows = weights.numel
    counts = _counts(tape, block)
    order = aten.sort(tape, indices.view(rows))
    return aten.index(tape, weights.view(rows), order, "sorted_weights"), order, counts


# ---- experts --------------------------------------------------------------------------------------------------------
def _experts(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> Tensor:
    """`indices_padding_wrapper` around `_run_experts_grouped_mm`."""
    rows, hidden = x.shape
    padded = -(-(rows + block.num_experts * ALIGNMENT) // ALIGNMENT) * ALIGNMENT
    permuted = aten.new(tape, (padded,), "int32", "permuted")
    _sizes = tape.empty((block.num_experts,), "int32", "expert_rows")
    x = _with_a_row_more(tape, x)
    x = aten.index(tape, x, permuted, "padded")
    out = _grouped(tape, run, block, x)
    out = _put(tape, tape.empty((rows + 1, hidden), x.dtype, "unpermuted"), permuted, out)
    return _without_last(tape, out)


def _with_a_row_more(tape: Tape, x: Tensor) -> Tensor:
    """`vstack((x, zeros))`; gradients of x are a view."""
    rows, hidden = x.shape

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        return [grad and grad.view(rows, hidden)]

    _zeros = aten.new(tape, (hidden,), x.dtype, "zeros")
    node = tape.node((x,), (), backward)
    out = aten.new(tape, (rows + 1, hidden), x.dtype, "with_a_row_more", x.nbytes, Kernel.COPY)
    out.node = node
    return out


def _without_last(tape: Tape, x: Tensor) -> Tensor:
    """`x[:-1]`, a view; its gradient is written into zeros of the whole shape."""
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [aten.new(tape, shape, dtype, "grad_slice")])
    return Tensor(x.storage, (shape[0] - 1, shape[1]), dtype, node)


def _grouped(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor) -> Tensor:
    offsets = tape.empty((block.num_experts,), "int32", "offsets")
    w1, w2, w3 = (run.params[f"moe.experts.{name}"] for name in ("w1", "w2", "w3"))
    h = aten.silu(tape, aten.grouped_mm(tape, x, w1, offsets, "experts.w1"))
    h = aten.mul(tape, h, aten.grouped_mm(tape, x, w3, offsets, "experts.w3"))
    return aten.grouped_mm(tape, h, w2, offsets, "experts.w2")


def _put(tape: Tape, into: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """`into[rows] = x` of constants `into`: the row numbers are saved."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (rows,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_put", num_bytes, Kernel.PERMUTE)])
    tape.compute(Kernel.PERMUTE, 0, 2 * num_bytes)
    return Tensor(into.storage, into.shape, dtype, node)


def _shared_expert(tape: Tape, run: LayerWorkload, x: Tensor) -> Tensor:
    """`FeedForward.forward` of all tokens."""
    w1, w2, w3 = (run.params[f"moe.shared_experts.{name}.weight"] for name in ("w1", "w2", "w3"))
    gate = aten.silu(tape, aten.linear(tape, x, w1, "shared_experts.w1"))
    product = aten.mul(tape, gate, aten.linear(tape, x, w3, "shared_experts.w3"))
    del gate
    return aten.linear(tape, product, w2, "shared_experts.w2")


def _combined(tape: Tape, run: LayerWorkload, weights: Tensor, x: Tensor) -> Tensor:
    """`bmm(weights, x.float())` of weights [t, 1, k] and x [t, k, h], in the compute dtype."""
    return aten.cast(tape, _weighted(tape, weights, aten.cast(tape, x, "fp32")), run.compute)


def _weighted(tape: Tape, weights: Tensor, x: Tensor) -> Tensor:
    """The gradient of x comes first."""
    x_shape, w_shape, moved, flops = x.shape, weights.shape, x.nbytes, 2 * x.numel

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        to_x = aten.new(tape, x_shape, "fp32", "grad_weighted", moved, Kernel.GEMM, flops)
        return [aten.new(tape, w_shape, "fp32", "grad_weights", moved, Kernel.GEMM, flops), to_x]

    node = tape.node((weights, x), (weights, x), backward)
    out = aten.new(tape, (x_shape[0], x_shape[2]), "fp32", "weighted", moved, Kernel.GEMM, flops)
    out.node = node
    return out
