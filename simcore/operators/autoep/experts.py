"""DeepSpeed's copy of torchtitan's experts (0.19.6, edaa72212 `module_inject/auto_ep_layer.py`, AutoEPMoELayer).

Its router and its grouped experts are torchtitan's (`moe/ep_router.py`, `moe/ep_experts.py`): rows are sorted by
expert, those of other ranks' experts go there and come back by all-to-all, each expert's are filled up to a multiple of
8. Before rows go, the numbers of each expert's rows do, int32, and the host waits for their sums. Weights are applied
to the results in fp32, which keeps the results in fp32 (combine_from_routed).

[Note: logits that are not read] For Mixtral and Qwen a hook calls the router's linear once more in each forward
(_register_logit_hook): the block refers to its logits until it returns, and nothing of them stays. The replay of a
checkpoint stops inside the block (at the weights of its sum), before that: so the logits stay until the layer's next
forward, and with them their graph, which has saved all that the replay made up to the router. DeepSeek's has no hook.

Kernels: on Hopper and later torch's grouped products, else DeepSpeed's own in Triton, which keep the same tensors;
SwiGLU is one kernel that keeps both of its inputs (`ops/triton_ops/swiglu_triton.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Branch, Mlp, Moe
from simcore.operators.shared import aten
from simcore.operators.torchtitan.rows import pad_rows, padded_rows, put_rows, unpad_rows
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["moe"]

Grads = list[Tensor | None]
SharedExpert = Callable[[Tape, LayerWorkload, str, Mlp, Tensor], Tensor]
"""(tape, run, module, block, x) -> output of an MLP."""


def moe(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor, mlp: SharedExpert) -> Tensor:
    """Output of DeepSpeed's experts for `x` [b, s, hidden], in x's shape. `mlp` records a shared expert."""
    block, name, shape = branch.block, branch.name, x.shape
    assert isinstance(block, Moe)
    rows, hidden = run.tokens * block.top_k, (run.tokens, block.hidden)
    flat = _rows(tape, x, hidden)
    weights, indices = _route(tape, run, name, block, flat)
    tape.held[:] = [_gate(tape, run, name, flat)]
    order = aten.sort(tape, Tensor(indices.storage, (rows,), "int64"))
    _sorted_weights = aten.index(tape, weights.view(rows), order, "sorted_weights")
    _sorted_experts = aten.select(tape, order, (rows,), "int64", "sorted_experts")
    del indices
    made = aten.index(tape, flat, aten.select(tape, order, (rows,), "int64", "tokens"), "dispatched")
    given = [made]
    if run.ep == 1:  # what was given stays until the block returns
        made = _experts(tape, run, name, block, [made])
    else:
        received = run.tokens * run.rows_per_token >> 16 if run.rows_per_token else rows
        _counts(tape, run, block)
        given[0] = _exchanged(tape, run, made, received)
        del made
        made = _experts(tape, run, name, block, given)
        made = _exchanged(tape, run, made, rows)
    out = _combined(tape, run, block, weights, order, made)
    out = out.view(*shape)
    if block.shared_ffn:
        seen = flat if block.shared_gate else x
        out = aten.add(tape, out, _shared(tape, run, name, block, seen, mlp).view(*shape), "output")
    tape.held.clear()
    return out


def _rows(tape: Tape, x: Tensor, shape: tuple[int, int]) -> Tensor:
    """View of `x` as rows, with a node in which their gradients are added up."""
    whole = x.shape

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        return [grad and grad.view(*whole)]

    return Tensor(x.storage, shape, x.dtype, tape.node((x,), (), backward))


def _route(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor]:
    """(fp32 weights, int64 numbers of the chosen experts), both [t, k]: `TokenChoiceTopKRouter.forward`."""
    scores = aten.softmax(tape, aten.cast(tape, _gate(tape, run, name, x), "fp32"))
    _highest, indices = aten.topk(tape, scores, block.top_k)
    weights = aten.gather(tape, scores, indices)
    if block.normalised:
        divisor = aten.add_scalar(tape, aten.sum_last(tape, weights, keepdim=True))
        weights = aten.div(tape, weights, divisor)
    return aten.mul_scalar(tape, weights), indices


def _gate(tape: Tape, run: LayerWorkload, name: str, x: Tensor) -> Tensor:
    return aten.linear(tape, x, run.params[f"{name}.router.gate.weight"], "router_gate")


# ---- rows of other ranks --------------------------------------------------------------------------------------------
def _counts(tape: Tape, run: LayerWorkload, block: Moe) -> None:
    """Numbers of rows of each expert, int32, exchanged (`_split_plan_from_expert_counts`)."""
    tape.collective("all_to_all", run.ep_axis, 4 * block.num_experts, "int32")


def _exchanged(tape: Tape, run: LayerWorkload, x: Tensor, rows: int) -> Tensor:
    """`_AllToAllV`: `x` [r, hidden] becomes the `rows` rows that this rank gets."""
    shape, dtype, axis = x.shape, x.dtype, run.ep_axis

    def send(rows: int, name: str) -> Tensor:
        out = tape.empty((rows, shape[1]), dtype, name)
        tape.collective("all_to_all", axis, rows * shape[1] * dtype_bytes(dtype), dtype)
        return out

    node = tape.node((x,), (), lambda tape, grads, saved: [send(shape[0], "grad_all_to_all")])
    out = send(rows, "all_to_all")
    out.node = node
    return out


# ---- experts --------------------------------------------------------------------------------------------------------
def _experts(tape: Tape, run: LayerWorkload, name: str, block: Moe, given: list[Tensor]) -> Tensor:
    """`permute_by_local_expert`, `GroupedExperts`, `unpermute_by_local_expert` of rows that it takes from `given`."""
    rows, experts = given[0].shape[0], block.num_experts // run.ep
    places = aten.new(tape, (padded_rows(rows, experts),), "int32", "permuted")
    padded = pad_rows(tape, given[0], places)
    given.clear()
    out = _grouped(tape, run, name, experts, padded)
    return unpad_rows(tape, out, places, (rows + 1, block.hidden))


def _grouped(tape: Tape, run: LayerWorkload, name: str, experts: int, x: Tensor) -> Tensor:
    """`_run_experts_grouped_mm`."""
    offsets = tape.empty((experts,), "int32", "offsets")
    w1, w2, w3 = (run.params[f"{name}.experts.{part}"] for part in ("w1", "w2", "w3"))
    gate = aten.grouped_mm(tape, x, w1, offsets, "experts.w1")
    up = aten.grouped_mm(tape, x, w3, offsets, "experts.w3")
    return aten.grouped_mm(tape, _swiglu(tape, gate, up), w2, offsets, "experts.w2")


def _swiglu(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """One kernel forward and one backward; both inputs are kept."""
    shape, dtype, moved = gate.shape, gate.dtype, gate.nbytes

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        to_gate = aten.new(tape, shape, dtype, "grad_gate", 4 * moved)
        return [to_gate, tape.empty(shape, dtype, "grad_up")]

    node = tape.node((gate, up), (gate, up), backward)
    out = aten.new(tape, shape, dtype, "swiglu", 2 * moved)
    out.node = node
    return out


# ---- results --------------------------------------------------------------------------------------------------------
def _combined(tape: Tape, run: LayerWorkload, block: Moe, weights: Tensor, order: Tensor, made: Tensor) -> Tensor:
    """`combine_from_routed`: rows `made` [t * k, hidden] in the order of tokens, weighted in fp32 and added up."""
    rows, hidden = made.shape
    by_choice = (run.tokens, block.top_k, hidden)
    ordered = put_rows(tape, aten.new(tape, (rows, hidden), made.dtype, "unsorted"), order, made).view(*by_choice)
    return aten.cast(tape, _over_choices(tape, aten.mul(
        tape, aten.cast(tape, ordered, "fp32"), weights.view(run.tokens, block.top_k, 1), "weighted")), made.dtype)


def _over_choices(tape: Tape, x: Tensor) -> Tensor:
    """`x.sum(dim=1)` of `x` [t, k, hidden]; the gradient is an expanded view."""
    shape = x.shape

    def backward(tape: Tape, grads: Grads, saved: list[Tensor]) -> Grads:
        (grad,) = grads
        return [grad and Tensor(grad.storage, shape, grad.dtype)]

    node = tape.node((x,), (), backward)
    out = aten.new(tape, (shape[0], shape[2]), x.dtype, "sum", x.nbytes, Kernel.ELEMENTWISE, x.numel)
    out.node = node
    return out


def _shared(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor, mlp: SharedExpert) -> Tensor:
    """The shared expert, which all tokens go through; beside a gate by itself."""
    made = mlp(tape, run, f"{name}.shared_experts", Mlp(block.hidden, block.shared_ffn), x)
    if not block.shared_gate:
        return made
    gate = aten.linear(tape, x, run.params[f"{name}.shared_experts_gate.weight"], "shared_experts_gate")
    return aten.mul(tape, aten.sigmoid(tape, gate), made, "gated")
