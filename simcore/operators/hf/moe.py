"""Mixture of experts in transformers 5.23: `models/nemotron_h`, `models/qwen3_moe`, `models/mixtral`.

Routing cannot be known here: it is perfectly balanced, batched products over equal groups of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from simcore.models.blocks import Branch, LayerKind, Mlp, Moe
from simcore.operators.hf import remote_code
from simcore.operators.hf.across_ranks.exchange import by_exchange, masked_in_place
from simcore.operators.hf.across_ranks.width import by_width
from simcore.operators.hf.autocast import is_autocast, product
from simcore.operators.hf.choice.at_once import chosen_at_once
from simcore.operators.hf.choice.grouped import chosen_in_groups, left_out, mask_of_groups
from simcore.operators.hf.gemma4.experts import Parts, beside_mlp
from simcore.operators.hf.layers import Inputs, is_of_hub, linear, mlp, relu2
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.packed import whole_experts
from simcore.operators.hf.peft import ExpertWeights
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import (
    INNER_BACKWARD_BEGIN,
    INNER_BACKWARD_END,
    INNER_FORWARD_BEGIN,
    INNER_FORWARD_END,
    Op,
    Tape,
    Tensor,
)

__all__ = ["ByExpert", "as_rows", "by_expert", "by_token", "joined", "moe", "returning_logits", "route_at_once",
           "route_greedily", "route_in_groups", "routed"]

Route = Callable[[Tape, LayerWorkload, str, Moe, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(tape, run, the block's module, block, rows) -> (logits, weights, indices) of the chosen experts."""


def moe(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor, *, wide: bool = False,
        route: Route | None = None) -> Tensor:
    """Output of an MoE block for `x` [b, s, hidden], in x's shape.

    Router, routed experts and, if there is one, a shared expert on the same input. `wide`: a softmax router's weights
    are fp32 instead of the compute dtype (a sigmoid router's always are, beside a gated shared expert never). `route`:
    the router, None for the usual one. Over tp it is whole on every rank.
    """
    block = branch.block
    assert isinstance(block, Moe)
    experts = HfOptions.of(run.options).experts
    if experts is not None:
        return experts(tape, run, branch, x)
    if block.shared_gate:
        return _with_gated_shared(tape, run, branch.name, block, x)
    name, shape = branch.name, x.shape
    rows = x.view(run.tokens, block.hidden)
    # The logits stay in a local variable that is not read; those of the hub's router are its own.
    whole = replace(run, tp=1)
    if route is not None or block.router == "sigmoid":
        logits, weights, indices = (route or _route)(tape, whole, name, block, rows)
    else:
        dtype = "fp32" if wide else run.compute
        logits, weights, indices = _route_by_softmax(tape, whole, name, block, rows, dtype)
    _kept = None if is_of_hub(run) else logits
    del rows, logits
    flat = as_rows(tape, x, (run.tokens, block.hidden))
    y = routed(tape, run, name, block, flat, indices, weights)
    del flat
    y = y.view(*shape)
    if not block.shared_ffn:
        return y
    shared = Mlp(block.hidden, block.shared_ffn, gated=block.gated)
    return aten.add(tape, y, mlp(tape, run, f"{name}.shared_experts", shared, x))


def routed(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor, indices: Tensor,
           weights: Tensor) -> Tensor:
    """Output of the routed experts for rows `x` [tokens, hidden], in x's shape.

    `indices`, `weights`: numbers and weights of the chosen experts, [tokens, top_k]. The options name the code that
    runs: grouped, batched or the repository's own. `name`: the module in the layer.
    """
    if HfOptions.of(run.options).has_expert_modules:
        return remote_code.experts_of_four(tape, run, name, block, x, indices, weights)
    if is_of_hub(run):
        return remote_code.experts(tape, run, name, block, x, indices, weights)
    if HfOptions.of(run.options).dispatches:
        return _inner_unit(tape, run, name, block, x, indices, weights)
    if HfOptions.of(run.options).grouped_experts:
        return by_width(tape, run, x, weights, lambda x, weights: _grouped_experts(
            tape, run, name, block, x, indices, weights))
    if HfOptions.of(run.options).experts_unit:
        return _inner_unit(tape, run, name, block, x, indices, weights)
    return _experts(tape, run, name, block, x, indices, weights)


def joined(tape: Tape, kind: LayerKind, run: LayerWorkload, inputs: Inputs,
           mix: Callable[[Tape, LayerWorkload, Branch, Inputs, str], tuple[Tensor, object]],
           norm: Callable[[Tape, LayerWorkload, str, Tensor, str], Tensor], held: object) -> tuple[Tensor, object]:
    """Stream `inputs.hidden` with experts beside an MLP added, and what the layer holds: `gemma4.experts`."""
    name, size, dense = kind.branches[-1].name, kind.hidden, kind.branches[-2]
    # The experts' module is the layer's own, not inside of a block that routes.
    inside = {f"{name}.{at}": param for at, param in run.params.items() if at.startswith(f"{name}.")}

    def normed(path: str, x: Tensor) -> Tensor:
        tape.scope = f"{path}."
        return norm(tape, run, f"{path}.", x, kind.family)

    def experts(rows: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        block = kind.branches[-1].block
        assert isinstance(block, Moe)
        return routed(tape, replace(run, params={**run.params, **inside}), name, block, rows, indices, weights)

    parts = Parts(normed, lambda x: mix(tape, run, dense, inputs._replace(hidden=x), kind.family)[0],
                  lambda at, x: linear(tape, run, at, x), lambda x: as_rows(tape, x, (run.tokens, size)), experts)
    return beside_mlp(tape, kind, run, inputs.hidden, parts, held)


def returning_logits(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor) -> tuple[Tensor, Tensor]:
    """(output of transformers 4's MoE block for `x` [b, s, hidden], in x's shape; logits of its router).

    Both read one view of x: [Note: the experts of transformers 4] in `remote_code.py`.
    """
    block = branch.block
    assert isinstance(block, Moe)
    flat = as_rows(tape, x, (run.tokens, block.hidden))
    logits, weights, indices = _route_by_softmax(tape, run, branch.name, block, flat, run.compute)
    return routed(tape, run, branch.name, block, flat, indices, weights).view(*x.shape), logits


def _with_gated_shared(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> Tensor:
    """`Qwen2MoeSparseMoeBlock`: the shared expert first, its gate last; over tp no plan splits either."""
    flat, whole = as_rows(tape, x, (run.tokens, block.hidden)), replace(run, tp=1)
    shared = mlp(tape, whole, f"{name}.shared_expert", Mlp(block.hidden, block.shared_ffn), flat)
    _logits, weights, indices = _route_by_softmax(tape, whole, name, block, flat, run.compute)
    y = routed(tape, run, name, block, flat, indices, weights)
    gate = f"{name}.shared_expert_gate"
    shared = aten.mul(tape, aten.sigmoid(tape, linear(tape, whole, gate, flat)), shared, "gated")
    y = aten.add(tape, y, shared, "output")
    return y.view(*x.shape)


def as_rows(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View of `x` in the given shape with an autograd node, in which the gradients of `x` are added up."""
    whole = x.shape

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        (grad,) = grads
        return [grad and grad.view(*whole)]

    return Tensor(x.storage, shape, x.dtype, tape.node((x,), (), backward))


def _route(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sigmoid scores, one group of experts, top k, normalised and scaled.

    All in fp32; under autocast the product, and so scores and weights, are in the compute dtype, sums stay fp32.
    """
    weight = run.params[f"{name}.gate.weight"]
    logits = product(tape, run, aten.cast(tape, x, "fp32"), aten.cast(tape, weight, "fp32"), "gate")
    scores = aten.sigmoid(tape, logits)
    return logits, *chosen_in_groups(tape, block, scores, corrects=True)


def route_at_once(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of logits in the compute dtype, without groups or a factor (`MiniMaxM2TopKRouter`)."""
    logits = linear(tape, run, f"{name}.gate", x)
    return logits, *chosen_at_once(tape, block, logits)


def route_in_groups(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of a softmax that stays in the type of its logits, without a correction (`Mistral4TopkRouter`)."""
    logits = linear(tape, run, f"{name}.gate", x)
    scores = aten.softmax(tape, logits)
    return logits, *chosen_in_groups(tape, block, scores, corrects=False)


def route_greedily(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of a softmax in fp32 that is not normalised (`DeepseekV2TopkRouter`), within the groups of the best."""
    weight = run.params[f"{name}.gate.weight"]
    logits = aten.linear(tape, aten.cast(tape, x, "fp32"), aten.cast(tape, weight, "fp32"), "gate")
    scores = aten.softmax(tape, logits)
    if block.num_groups > 1:
        tokens, groups = scores.shape[0], block.num_groups
        best = aten.select(tape, scores, (tokens, groups), "fp32", "group_scores")
        _picked = tape.empty((tokens, groups), "int64", "max_indices")
        _indices = aten.topk(tape, best, block.chosen_groups)[1]
        _named = mask_of_groups(tape, best, scores.shape)
        scores = aten.masked_fill(tape, scores, left_out(tape, _named[-1], scores.shape))
    weights, indices = aten.topk(tape, scores, block.top_k)
    return logits, aten.mul_scalar(tape, weights), indices


def _route_by_softmax(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor,
                      dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits in the compute dtype, softmax in fp32, top k, normalised or not (`Qwen3MoeTopKRouter` and its like)."""
    logits = linear(tape, run, f"{name}.gate", x)
    probabilities = aten.softmax(tape, aten.cast(tape, logits, "fp32"))
    weights, indices = aten.topk(tape, probabilities, block.top_k)
    if block.normalised:
        aten.div_(tape, weights, aten.sum_last(tape, weights, keepdim=True))
    weights = aten.cast(tape, weights, dtype)
    del probabilities
    return logits, weights, indices


def _inner_unit(tape: Tape, run: LayerWorkload, name: str, block: Moe, x: Tensor, indices: Tensor,
                weights: Tensor) -> Tensor:
    """The experts as a data-parallel unit of their own: it casts floating inputs, its hooks run inside the layer.

    Where nothing behind the experts keeps a tensor, their pre-backward hook runs before the replay: FSDP2 then leaves
    the forward's hooks out (torch 2.13 `_fsdp_state.py`, _pre_forward in state PRE_BACKWARD).
    """
    weights = aten.cast(tape, weights, run.compute)
    run_experts = _dispatched if HfOptions.of(run.options).dispatches else _experts
    if _backward_has_begun(tape):
        return run_experts(tape, run, name, block, x, indices, weights)
    tape.mark(INNER_FORWARD_BEGIN)
    y = run_experts(tape, run, name, block, *_unit_inputs(tape, x, indices, weights))
    y.node = tape.node((y,), (), _unit_backward_begin)
    tape.mark(INNER_FORWARD_END)
    return y


def _backward_has_begun(tape: Tape) -> bool:
    return any(row[0] == Op.MARK and row[2] == INNER_BACKWARD_BEGIN for row in tape.rows)


def _unit_inputs(tape: Tape, x: Tensor, indices: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    node = tape.node((x, weights), (), _unit_backward_end)
    return (Tensor(x.storage, x.shape, x.dtype, node), indices,
            Tensor(weights.storage, weights.shape, weights.dtype, node, 1))


def _unit_backward_begin(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
    tape.mark(INNER_BACKWARD_BEGIN)
    return list(grads)


def _unit_backward_end(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
    tape.mark(INNER_BACKWARD_END)
    return [*grads, None][:2]


def _experts(tape: Tape, run: LayerWorkload, name: str, block: Moe, hidden: Tensor, indices: Tensor,
             weights: Tensor) -> Tensor:
    """Rows sorted by expert, two batched products, rows weighted and added back."""
    rows = run.tokens * block.top_k
    order = aten.sort(tape, indices.view(rows))
    token = aten.select(tape, order, (rows,), "int64", "token")
    x = aten.index(tape, hidden, token, "dispatched")
    # DTensor.to_local() makes its nodes here, a plain parameter's transpose next to each product.
    local = HfOptions.of(run.options).experts_unit and run.ep > 1
    first = "gate_up_proj" if block.gated else "up_proj"
    matrices = [aten.strided(tape, run.params[f"{name}.experts.{part}"]) for part in (first, "down_proj")] * local
    if run.ep > 1:
        received = run.tokens * run.rows_per_token >> 16 if run.rows_per_token else rows
        x = aten.all_to_all(tape, x, received, run.ep_axis)
        x = _regroup(tape, run, name, x, "experts_in")
    h = _product(tape, run, f"{name}.experts.{first}", x, matrices, 0)
    h = _gated(tape, h, block) if block.gated else relu2(tape, run, h)
    y = _product(tape, run, f"{name}.experts.down_proj", h, matrices, 1)
    if run.ep > 1:
        y = _regroup(tape, run, name, y, "experts_out")
        y = aten.all_to_all(tape, y, rows, run.ep_axis)
    row_weights = _row_weights(tape, weights, order, y.dtype)
    y = aten.mul(tape, y, row_weights, "weighted")
    del row_weights
    return aten.index_add(tape, aten.select(tape, hidden, hidden.shape, hidden.dtype, "zeros"), token, y)


def _grouped_experts(tape: Tape, run: LayerWorkload, name: str, block: Moe, hidden: Tensor, indices: Tensor,
                     weights: Tensor) -> Tensor:
    """`grouped_mm_experts_forward` of transformers 5.23 `integrations/moe.py`, its default on a GPU; local experts."""
    first = "gate_up_proj" if block.gated else "up_proj"
    matrices = _local(tape, run, name, first) if run.tp > 1 else ExpertWeights(
        tape, run, f"{name}.experts", (first, "down_proj"), whole_experts)
    found = by_expert(tape, block, hidden, indices, weights)
    x = aten.grouped_mm(tape, found.rows, matrices[first], found.offsets, f"experts.{first}")
    x = _gated(tape, x, block) if block.gated else aten.cast(tape, relu2(tape, run, x), hidden.dtype)
    x = aten.grouped_mm(tape, x, matrices["down_proj"], found.offsets, "experts.down_proj")
    return by_token(tape, run, block, x, found, hidden.dtype)


def _dispatched(tape: Tape, run: LayerWorkload, name: str, block: Moe, hidden: Tensor, indices: Tensor,
                weights: Tensor) -> Tensor:
    """`AllToAllEP` of transformers 5.23 around `grouped_mm_experts_forward` of this rank's experts, one a row."""
    first = "gate_up_proj" if block.gated else "up_proj"
    matrices = _local(tape, run, name, first)
    own = replace(block, top_k=1, num_experts=block.num_experts // run.ep)

    def experts(rows: Tensor, ids: Tensor, ones: Tensor) -> Tensor:
        found = by_expert(tape, own, rows, ids, ones)
        mask = aten.select(tape, found.ids, (rows.shape[0], 1), "uint8", "sentinel_mask")
        found = found._replace(rows=masked_in_place(tape, found.rows, mask))
        x = aten.grouped_mm(tape, found.rows, matrices[first], found.offsets, f"experts.{first}")
        x = aten.masked_fill(tape, x, mask)
        x = _gated(tape, x, block) if block.gated else aten.cast(tape, relu2(tape, run, x), rows.dtype)
        x = aten.grouped_mm(tape, x, matrices["down_proj"], found.offsets, "experts.down_proj")
        x = aten.masked_fill(tape, x, mask)
        return by_token(tape, run, own, x, found, rows.dtype)

    return by_exchange(tape, run, block, hidden, indices, weights, experts)


def _local(tape: Tape, run: LayerWorkload, name: str, first: str) -> dict[str, Tensor]:
    """This rank's part of both weights: DTensor.to_local() makes its nodes ahead of what the experts do."""
    params = ((part, run.params[f"{name}.experts.{part}"]) for part in (first, "down_proj"))
    return {part: aten.reshaped(tape, param, param.shape) for part, param in params}


class ByExpert(NamedTuple):
    """Rows in the order of their experts, and what `grouped_mm_experts_forward` holds with them until it returns."""

    ids: Tensor
    order: Tensor
    rows: Tensor
    weights: Tensor
    counted: Tensor
    counts: Tensor
    offsets: Tensor


def by_expert(tape: Tape, block: Moe, hidden: Tensor, indices: Tensor, weights: Tensor) -> ByExpert:
    """Rows [tokens * top_k, hidden] sorted by expert, with the offsets of each expert's rows."""
    num = hidden.shape[0] * block.top_k
    ids = aten.select(tape, indices, (num,), "int64", "sorted")
    order = tape.empty((num,), "int64", "order")
    rows = aten.index(tape, hidden, aten.select(tape, order, (num,), "int64", "token"), "dispatched")
    row_weights = aten.index(tape, weights.view(num), order, "row_weights")
    counted = aten.select(tape, ids, (num,), "int32", "histc_input")
    counts = aten.select(tape, counted, (block.num_experts,), "int32", "tokens_per_expert")
    offsets = aten.select(tape, counts, (block.num_experts,), "int32", "offsets")
    return ByExpert(ids, order, rows, row_weights, counted, counts, offsets)


def by_token(tape: Tape, run: LayerWorkload, block: Moe, x: Tensor, found: ByExpert, dtype: str) -> Tensor:
    """Output [tokens, hidden] of experts' rows `x`, weighted and added, in the type `dtype`; autocast adds in fp32."""
    weighted = aten.mul_rows(tape, x, found.weights, "weighted")
    inverse = aten.select(tape, found.order, found.order.shape, "int64", "inverse")
    aten.select(tape, found.order, found.order.shape, "int64", "arange")
    weighted = aten.index(tape, weighted, inverse, "weighted")
    out = aten.sum_of(tape, weighted, block.top_k, "fp32" if is_autocast(run) else "")
    return aten.cast(tape, out, dtype)


def _gated(tape: Tape, x: Tensor, block: Moe) -> Tensor:
    """`silu(gate) * up` (or GELU) of one tensor that holds both; the views pin it."""
    gate, up = aten.chunk(tape, x)
    return aten.mul(tape, (aten.gelu if block.gelu else aten.silu)(tape, gate), up)


def _regroup(tape: Tape, run: LayerWorkload, name: str, x: Tensor, label: str) -> Tensor:
    """Rows by rank and expert become rows by expert and rank, or back: a copy, unless there is only one expert."""
    return aten.swap_dims(tape, x, label) if run.params[f"{name}.experts.down_proj"].shape[0] > 1 else x


def _product(tape: Tape, run: LayerWorkload, name: str, x: Tensor, matrices: list[Tensor], number: int) -> Tensor:
    matrix = matrices[number] if matrices else aten.strided(tape, run.params[name])
    return aten.bmm(tape, x, matrix, name.removeprefix(tape.scope))


def _row_weights(tape: Tape, weights: Tensor, order: Tensor, dtype: str) -> Tensor:
    rows = order.shape[0]
    picked = aten.index(tape, weights.view(rows), order, "row_weights")
    return aten.cast(tape, picked, dtype).view(rows, 1)
