"""Whole experts on different ranks, as transformers 5.23 reaches them: rows are sent to their experts and back.

`distributed/expert_parallel.py`, AllToAllEP: what `ep_implementation: auto` runs in training.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Moe
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["by_exchange", "masked_in_place"]

Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows [r, hidden], number of each row's expert [r], ones [r]) -> what the experts of this rank make of them."""
Grads = list[Tensor | None]


def by_exchange(tape: Tape, run: LayerWorkload, block: Moe, hidden: Tensor, indices: Tensor, weights: Tensor,
                experts: Experts) -> Tensor:
    """Output [tokens, hidden] of routed experts for rows `hidden` of this rank, in their type.

    `indices`, `weights`: numbers and weights of the chosen experts, [tokens, top_k]; the weights are applied where the
    tokens come from. `experts`: this rank's own.
    """
    whole, dtype = hidden.shape, hidden.dtype
    if run.tp > 1:  # ranks of tp share a batch: each sends its own rows of it
        hidden, indices, weights = (_own_rows(tape, run.tp, x, name) for x, name in (
            (hidden, "hidden"), (indices, "top_k_index"), (weights, "top_k_weights")))
    rows, ids, order = _sent(tape, run, block, hidden, indices)
    del hidden, indices
    ones = aten.select(tape, ids, ids.shape, rows.dtype, "recv_weights")
    made = experts(rows, ids, ones)
    back = aten.all_to_all(tape, made, order.shape[0], run.ep_axis)
    outputs = _by_token(tape, back, order)
    weighted = aten.mul_rows(tape, outputs, weights.view(order.shape[0]), "weighted")
    out = _sum_of_chosen(tape, weighted, block.top_k)
    del weighted
    return aten.cast(tape, _whole_rows(tape, run.tp, out, whole), dtype)


def _sent(tape: Tape, run: LayerWorkload, block: Moe, hidden: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(rows that this rank's experts get, the expert of each, order in which this rank's own were sent)."""
    num, experts = hidden.shape[0] * block.top_k, (block.num_experts,)
    order = aten.sort(tape, indices.view(num))
    sent = aten.index(tape, hidden, aten.select(tape, order, (num,), "int64", "token"), "dispatched")
    counts = aten.select(tape, order, experts, "int64", "send_counts")
    aten.select(tape, order, (num,), "int64", "ones")
    received = tape.empty(experts, "int64", "recv_counts")
    tape.collective("all_to_all", run.ep_axis, received.nbytes, "int64")
    _ = [aten.select(tape, x, (run.ep,), "int64", "sizes") for x in (counts, received)]
    aten.select(tape, counts, (2 * run.ep,), "int64", "sizes")  # stacked, and read by the host
    del _
    tokens = hidden.shape[0]
    rows = aten.all_to_all(tape, sent, tokens * run.rows_per_token >> 16 if run.rows_per_token else num, run.ep_axis)
    numbers = aten.select(tape, counts, experts, "int64", "local_ids")
    where = aten.select(tape, received, rows.shape[:1], "int64", "repeated")
    ids = aten.select(tape, numbers, where.shape, "int64", "recv_expert_ids")
    return rows, ids, order


def _own_rows(tape: Tape, tp: int, x: Tensor, name: str) -> Tensor:
    """Copy of this rank's rows of `x`, which tp ranks share; backward all-gathers the gradient."""
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        return [_gathered(tape, shape, dtype, f"grad_{name}")]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, (shape[0] // tp, *shape[1:]), dtype, f"{name}_part", x.nbytes // tp, Kernel.COPY)
    out.node = node
    return out


def _whole_rows(tape: Tape, tp: int, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """All-gathers rows `x` over tp to `shape`, `x` if tp is 1; backward copies this rank's part of the gradient."""
    if tp == 1:
        return x
    part, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [
        aten.new(tape, part, dtype, "grad_output_part", kernel=Kernel.COPY)])
    out = _gathered(tape, shape, dtype, "output")
    out.node = node
    return out


def _gathered(tape: Tape, shape: tuple[int, ...], dtype: str, name: str) -> Tensor:
    out = tape.empty(shape, dtype, f"{name}_gathered")
    tape.collective("all_gather", "tp", out.nbytes, dtype)
    return out


def masked_in_place(tape: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """`x.masked_fill_(mask, 0)`; its gradient is masked into a new tensor."""
    shape, dtype, moved = x.shape, x.dtype, x.nbytes + mask.nbytes
    node = tape.node((x,), (mask,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_masked_fill", moved)])
    tape.compute(Kernel.ELEMENTWISE, x.numel, 2 * x.nbytes, 1)
    return Tensor(x.storage, shape, dtype, node)


def _by_token(tape: Tape, x: Tensor, order: Tensor) -> Tensor:
    """`empty_like(x)[order] = x`; backward takes the rows out again."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (order,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_token_outputs", num_bytes, Kernel.PERMUTE)])
    out = aten.new(tape, shape, dtype, "token_outputs", num_bytes, Kernel.PERMUTE)
    out.node = node
    return out


def _sum_of_chosen(tape: Tape, x: Tensor, count: int) -> Tensor:
    """Sum of each `count` consecutive rows of `x` [r, k]; the gradient is an expanded view."""
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        return [grad and Tensor(grad.storage, shape, dtype)]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, (shape[0] // count, *shape[1:]), dtype, "sum", x.nbytes, flops=x.numel)
    out.node = node
    return out
