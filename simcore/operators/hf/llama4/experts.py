"""Experts of Llama 4 (transformers 5.23 `models/llama4/modeling_llama4.py`, Llama4TextMoe, Llama4TextExperts).

[Note: every expert computes every token] The block repeats its input for each expert and multiplies it by the expert's
score, which is sigmoid(-inf) = 0 for all but the chosen: products are of experts x tokens rows, whatever `top_k`, and
so is what they keep. Nothing is sorted or dispatched, and routing changes nothing. Neither grouped products
(`integrations/moe.py`) nor expert parallelism know these modules (`Llama4TextConfig` has no `base_model_ep_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simcore.models.blocks import Moe
from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["moe"]

Grads = list[Tensor | None]
Module = Callable[[str, Tensor], Tensor]
"""(name in the block, x) -> output of the module."""


def moe(tape: Tape, block: Moe, x: Tensor, weights: Mapping[str, Param], linear: Module,
        mlp: Module) -> tuple[Tensor, Tensor]:
    """(output of `Llama4TextMoe` for `x` [tokens, hidden], in x's shape; logits of its router, which it returns).

    `weights`: `gate_up_proj` and `down_proj` of the experts; `linear`, `mlp`: run the router and the shared expert.
    """
    logits, scores = _route(tape, block, x, linear)
    given = _repeated(tape, x, block.num_experts)
    given = aten.mul(tape, given, _by_expert(tape, scores), "weighed")
    made = _experts(tape, weights, given)
    out = mlp("shared_expert", x)
    aten.add_(tape, out, _summed(tape, made, block.num_experts))
    return out, logits


def _route(tape: Tape, block: Moe, x: Tensor, linear: Module) -> tuple[Tensor, Tensor]:
    """(logits [tokens, experts], their sigmoid where an expert is chosen, 0 elsewhere), in the compute dtype."""
    logits = linear("router", x)
    values, indices = aten.topk(tape, logits, block.top_k)
    scores = _scattered(tape, logits, values, indices)
    scores = aten.cast(tape, aten.sigmoid(tape, aten.cast(tape, scores, "fp32")), logits.dtype)
    return logits, scores


def _scattered(tape: Tape, like: Tensor, values: Tensor, indices: Tensor) -> Tensor:
    """`full_like(like, -inf).scatter_(1, indices, values)`; values' gradient is gathered."""
    shape, dtype, num_bytes = values.shape, values.dtype, like.nbytes
    out = aten.new(tape, like.shape, like.dtype, "scores")
    node = tape.node((values,), (indices,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_gather", num_bytes, Kernel.PERMUTE)])
    tape.compute(Kernel.PERMUTE, 0, values.nbytes + indices.nbytes)
    out.node = node
    return out


def _repeated(tape: Tape, x: Tensor, times: int) -> Tensor:
    """`x.repeat(times, 1)` of [t, h]; the gradient is summed over the copies."""
    shape, dtype, num_bytes = x.shape, x.dtype, times * x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [aten.new(tape, shape, dtype, "grad_repeat", num_bytes)])
    out = aten.new(tape, (times * shape[0], shape[1]), dtype, "repeated", x.nbytes, Kernel.COPY)
    out.node = node
    return out


def _by_expert(tape: Tape, scores: Tensor) -> Tensor:
    """`scores.transpose(0, 1).reshape(-1, 1)`: a copy by experts, whose gradient is a view."""
    shape = scores.shape

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        return [grad and grad.view(*shape)]

    node = tape.node((scores,), (), backward)
    out = aten.new(tape, (scores.numel, 1), scores.dtype, "row_scores", scores.nbytes, Kernel.PERMUTE)
    out.node = node
    return out


def _experts(tape: Tape, weights: Mapping[str, Param], x: Tensor) -> Tensor:
    """Two batched products of all experts' rows [experts * tokens, hidden], SwiGLU between them."""
    gate, up = aten.chunk(tape, _product(tape, weights["gate_up_proj"], x, "experts.gate_up_proj"))
    act = aten.mul(tape, up, aten.silu(tape, gate))
    return _product(tape, weights["down_proj"], act, "experts.down_proj")


def _product(tape: Tape, weight: Param, x: Tensor, label: str) -> Tensor:
    """`torch.bmm(x, weight)` of rows [e * t, k] and weight [e, k, n]; the first factor's gradient is made first."""
    experts, k, n = weight.shape
    rows, dtype, flops = x.numel // k, x.dtype, 2 * x.numel * n
    x_needs, w_needs, moved = aten.needs_grad(x), weight.trainable, x.nbytes + weight.nbytes
    wide, narrow, by_rows = aten.shapes_of_group(rows, k, n, experts)

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        to_w = aten.new(tape, weight.shape, dtype, "grad_weight", moved, Kernel.GROUPED_GEMM, flops,
                        by_rows) if w_needs else None
        to_x = aten.new(tape, (rows, k), dtype, f"grad_{label}", moved, Kernel.GROUPED_GEMM, flops,
                        narrow) if x_needs else None
        return [to_x, to_w]

    node = tape.node((x, weight), (*[x] * w_needs, *[weight] * x_needs), backward)
    out = aten.new(tape, (rows, n), dtype, label, moved, Kernel.GROUPED_GEMM, flops, wide)
    out.node = node
    return out


def _summed(tape: Tape, x: Tensor, count: int) -> Tensor:
    """`x.reshape(count, -1, h).sum(dim=0)`; the expanded gradient is copied, because of the view."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes // count
    node = tape.node((x,), (), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_sum", num_bytes, Kernel.COPY)])
    out = aten.new(tape, (shape[0] // count, shape[1]), dtype, "sum", x.nbytes)
    out.node = node
    return out
