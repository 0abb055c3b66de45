"""Dispatcher `torch`: every rank of the group gathers all tokens and works on the rows of its own experts.

nemo-automodel 0.7.0 `components/moe/experts.py`, `GroupedExperts`.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.experts import computed_rows, expert_mlp
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["gathered"]


def gathered(env: Env, x: Tensor, weights: Tensor, indices: Tensor, block: Moe, path: str) -> Tensor:
    """Output [tokens, hidden] of the routed experts for `x` [tokens, hidden].

    Each rank gathers all tokens. `GroupedExperts.forward`: every rank of the expert parallel group computes the rows of
    its own experts, and all ranks sum the results. `weights`, `indices`: probabilities and numbers of the chosen
    experts, [tokens, top_k]; `path`: name of the experts' module.
    """
    tape, run, tokens, dtype = env.tape, env.run, x.shape[0], x.dtype
    probabilities = aten.cast(tape, weights, "fp32")
    assert isinstance(probabilities, Tensor)
    if run.ep > 1:
        x, probabilities = _all_gather(env, x, "x"), _all_gather(env, probabilities, "weights")
        indices = _all_gather(env, indices.detach(), "indices")
    y = _own_rows(env, x, probabilities, indices, computed_rows(env, block), path)
    if run.ep > 1:
        _keep_attached(tape, y, x)
        y = _all_reduce(env, y)
        y = _own_tokens(tape, y, tokens)
    out = aten.cast(tape, y, dtype)
    assert isinstance(out, Tensor)
    return out


def _all_gather(env: Env, x: Tensor, name: str) -> Tensor:
    """A list of every rank's tensor, concatenated; its backward sums over the group and takes the own part."""
    tape, axis, shape, dtype = env.tape, env.run.ep_axis, x.shape, x.dtype
    full = (shape[0] * env.run.ep, *shape[1:])

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        tape.collective("all_reduce", axis, grad.nbytes, dtype)
        return [new(tape, shape, dtype, f"grad_gathered_{name}", kernel=Kernel.COPY)]

    node = tape.node((x,), (), backward)
    parts = tape.empty(full, dtype, f"gathered_{name}_parts")
    tape.collective("all_gather", axis, parts.nbytes, dtype)
    out = new(tape, full, dtype, f"gathered_{name}", parts.nbytes, Kernel.COPY)
    out.node = node
    return out


def _own_rows(env: Env, x: Tensor, probabilities: Tensor, indices: Tensor, rows: int, path: str) -> Tensor:
    """`_forward_grouped_mm`: the rows of this rank's experts, sorted, computed, added into fp32 zeros."""
    tape = env.tape
    order, sorted_probabilities, slots = _sort_rows(tape, probabilities, indices, rows)
    y = new(tape, x.shape, "fp32", "expert_sum")
    permuted = aten.index(tape, x, order, "dispatched")
    output = expert_mlp(env, permuted, sorted_probabilities, path)
    _scatter_add(tape, y, output, order)
    del permuted, output, slots
    return y


def _sort_rows(tape: Tape, probabilities: Tensor, indices: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """`_permute_tokens_for_grouped_mm`; everything that gets no gradient dies when it returns, but two index lists."""
    shape, flat = indices.shape, indices.numel
    valid = new(tape, shape, "int64", "token_indices", indices.nbytes)
    token_ids = new(tape, (flat,), "int64", "token_ids")
    mask = new(tape, (flat,), "uint8", "local_mask", valid.nbytes)
    local_experts = new(tape, (rows,), "int64", "local_experts", kernel=Kernel.PERMUTE)
    local_tokens = new(tape, (rows,), "int64", "local_tokens", kernel=Kernel.PERMUTE)
    local = _select(tape, probabilities, mask, rows)
    order = aten.sort(tape, local_experts)
    sorted_experts = new(tape, (rows,), "int64", "sorted_experts", kernel=Kernel.PERMUTE)
    sorted_tokens = new(tape, (rows,), "int64", "sorted_token_ids", kernel=Kernel.PERMUTE)
    sorted_probabilities = _select(tape, local, order, rows)
    slots = new(tape, (rows,), "int64", "sorted_slots", kernel=Kernel.PERMUTE)
    del valid, token_ids, local_tokens, sorted_experts
    return sorted_tokens, sorted_probabilities.view(rows, 1), slots


def _select(tape: Tape, x: Tensor, positions: Tensor, rows: int) -> Tensor:
    """`x[positions]` of a flat tensor; the positions are saved."""
    shape = x.shape
    node = tape.node((x,), (positions,), lambda tape, grads, saved: [
        new(tape, shape, "fp32", "grad_probabilities", kernel=Kernel.PERMUTE)])
    out = new(tape, (rows,), "fp32", "probabilities", kernel=Kernel.PERMUTE)
    out.node = node
    return out


def _scatter_add(tape: Tape, y: Tensor, x: Tensor, rows: Tensor) -> None:
    """`y.scatter_add_(0, rows, x.float())` into a constant."""
    shape = x.shape
    source = aten.cast(tape, x, "fp32")
    assert isinstance(source, Tensor)
    node = tape.node((source,), (rows,), lambda tape, grads, saved: [
        new(tape, shape, "fp32", "grad_scatter", kernel=Kernel.PERMUTE)])
    tape.compute(Kernel.PERMUTE, 0, 3 * source.nbytes)
    y.node = node


def _keep_attached(tape: Tape, y: Tensor, x: Tensor) -> None:
    """`y.add_(x.sum() * 0)`: its gradient is as large as the gathered tokens, in their type."""
    shape, dtype = x.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [grads[0], new(tape, shape, dtype, "grad_sum", 0)]

    node = tape.node((y, x), (), backward)
    tape.compute(Kernel.ELEMENTWISE, x.numel, x.nbytes + 2 * y.nbytes)
    y.node = node


def _all_reduce(env: Env, y: Tensor) -> Tensor:
    """`torch.distributed.nn.functional.all_reduce`: a copy is reduced, backward does the same."""
    tape, axis, shape = env.tape, env.run.ep_axis, y.shape

    def reduce(tape: Tape, name: str) -> Tensor:
        out = new(tape, shape, "fp32", name, 4 * shape[0] * shape[1], Kernel.COPY)
        tape.collective("all_reduce", axis, out.nbytes, "fp32")
        return out

    node = tape.node((y,), (), lambda tape, grads, saved: [reduce(tape, "grad_expert_sum")])
    out = reduce(tape, "expert_sum")
    out.node = node
    return out


def _own_tokens(tape: Tape, y: Tensor, tokens: int) -> Tensor:
    """`y.narrow(0, start, tokens).contiguous()`; its gradient is written into zeros of the whole."""
    shape = y.shape
    node = tape.node((y,), (), lambda tape, grads, saved: [new(tape, shape, "fp32", "grad_narrow")])
    out = new(tape, (tokens, shape[1]), "fp32", "expert_output", kernel=Kernel.COPY)
    out.node = node
    return out
