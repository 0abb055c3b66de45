"""The trace of ZeRO-3: parameters that each call of a module needs, and the lifetime of frozen ones.

[Note: ZeRO-3 and frozen parameters] DeepSpeed 0.19.6 `runtime/zero/partitioned_param_coordinator.py`,
update_recompute_parameters and release_sub_module: frozen parameters that a replay gathers belong to the module
whose backward began last; they stay until that is over and are then released, even if used again soon. Backward gathers
them again, each when its module is called.

[Note: ZeRO-3 and weights in 4 bits] bitsandbytes 0.50.2 `autograd/_functions.py`, MatMul4Bit: `ctx.tensors` is a view
of the gathered weight. DeepSpeed drops its own reference (`free_param`), so the first gathered copy of a microbatch
exists until the graph is freed: with the loss, when backward is over (transformers 5.23 `trainer.py`, training_step),
whether layers are replayed or not.

[Note: ZeRO-3 and AutoTP] A linear of AutoTP is `torch.matmul(input, weight.transpose(-1, -2))`, not ZeRO-3's own
function (`runtime/zero/linear.py`), which saves the parameter itself: the node keeps a view, and with it the gathered
copy, until its backward is over, though DeepSpeed has released the parameter and gathers it again (0.19.6
`module_inject/layers.py`). So without recomputation a rank's part of all matrices is there at the end of forward.
Grouped products of AutoEP's experts keep such views too (`moe/ep_experts.py`, _run_experts_grouped_mm).

[Note: a head that the model reads] The forward of Nemotron-3-Nano's model reads the type of its head's weight, which
DeepSpeed then takes for the model's own (`parameter_offload.py`, ZeROOrderedDict.__getitem__): it is gathered when the
model is called, in either pass, and is not released before the pass is over (`ds_active_sub_modules`; backward of the
model has no end that a hook could see: release_backward_leftovers). TRL's head (1.16.0 `trainer/utils.py`
add_fused_lm_head) reads the weight in the model's forward, and the head is never called.

[Note: distance of reuse] `partitioned_param_coordinator.py`, __params_to_release: a leaf is told apart by the module
that is released. If that is a leaf, parameters of every following module count with those of the modules inside, also
as uses; otherwise each counts what it holds itself, and leaves count nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cache
from itertools import accumulate

from simcore.frameworks.deepspeed.experts.layers import EXPERTS_AXIS, axis_of
from simcore.frameworks.deepspeed.hpz import Key
from simcore.frameworks.deepspeed.modules.order import backward_calls, forward_calls, released_after, replayed
from simcore.frameworks.deepspeed.modules.units import Call
from simcore.frameworks.deepspeed.split.matrices import cut_of
from simcore.frameworks.deepspeed.strategy import PERSISTENT
from simcore.models.blocks import Embedding, Head
from simcore.placement.plan import Placed, Plan

__all__ = ["LivePackedWeights", "ReuseDistance", "bytes_by_dtype", "elements", "kept_views", "recorded",
           "seen_by_nodes"]


def bytes_by_dtype(params: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Returns (dtype, sum of bytes) for each dtype in `params`, in alphabetical order of dtypes.

    `params`: (dtype, bytes) of parameters. Each pair is one all-gather (`_all_gather_coalesced`, sort_dtypes).
    """
    sizes = Counter[str]()
    for dtype, num_bytes in params:
        sizes[dtype] += num_bytes
    return sorted(sizes.items())


def recorded(plan: Plan) -> Iterator[tuple[list[Key], list[Key]]]:
    """Yields (parameters that it needs, those of which no module is open after it) for every call of a module.

    A parameter is (layer number of the whole model, index in the layer, expert); often there are none. Calls of forward
    come first, in order, then those of backward, from the last layer to the first.
    Parameters that stay gathered are left out.
    """
    for layer, call in _calls(plan):
        keys = _keys(plan, layer, call)
        closed = keys if call.released is None else [_owner(plan, layer, *ref) for ref in call.released]
        yield keys, closed


def _calls(plan: Plan) -> Iterator[tuple[int, Call]]:
    """(layer, call) of every call of a module in a microbatch, in order; a model that trains nothing has no backward.

    It is then the reference of another, in an engine of its own, whose passes are forwards.
    """
    for layer in plan.layers:
        yield from ((layer, call) for call in forward_calls(plan, layer))
    trains = any(kind.is_trained for kind in plan.kinds)
    for layer in reversed(plan.layers) if trains else ():
        yield from ((layer, call) for calls in backward_calls(plan, layer) for call in calls)


def _keys(plan: Plan, layer: int, call: Call) -> list[Key]:
    """Parameters that are fetched for a call; a tied head uses the embedding's."""
    keys = [_owner(plan, layer, number, expert) for number, expert in call.needed]
    read = [_weight_of(plan, call.reads)] if call.reads else []
    return [key for key in (*keys, *read) if _placed(plan, key).policy.name != PERSISTENT]


def _owner(plan: Plan, layer: int, number: int, expert: int) -> Key:
    return (*plan.graph.owners.get((layer, number), (layer, number)), expert)


def _weight_of(plan: Plan, part: str) -> Key:
    """Weight of the head or the embedding, which is one if they are tied."""
    block = Head if part == "head" else Embedding
    layer = next(layer for layer in plan.layers if isinstance(_block_of(plan, layer), block))
    return _owner(plan, layer, 0, 0)


def _block_of(plan: Plan, layer: int) -> object:
    """Block that is the whole of a layer, such as the head; None for layers of several."""
    return plan.graph.kinds[plan.graph.layers[layer].kind].block


def elements(placed: Placed) -> int:
    """Returns the elements of a parameter as it is stored (of each expert's, if they are modules)."""
    return -(-placed.used // placed.used_copies // placed.policy.at_rest.values)


def _placed(plan: Plan, key: Key) -> Placed:
    return plan.of_layer(key[0])[key[1]]


def seen_by_nodes(plan: Plan) -> Set[Key]:
    """Returns the packed weights, (layer, index in the layer, expert) each, that autograd's graph keeps alive.

    They are those that backward uses: [Note: ZeRO-3 and weights in 4 bits].
    """
    keys_of_calls = (key for layer in plan.layers for calls in backward_calls(plan, layer) for call in calls
                     for key in _keys(plan, layer, call))
    return {key for key in keys_of_calls if (packed := _placed(plan,
                                                               key).policy.at_rest.packed) and not packed.is_tensor}


def kept_views(plan: Plan) -> tuple[Set[Key], Set[int]]:
    """Returns what products of AutoTP and of AutoEP's experts keep of gathered weights: [Note: ZeRO-3 and AutoTP].

    (weights, (layer, index in the layer, 0) each; numbers of the calls in a microbatch whose products keep them).
    """
    weights = {(layer, number, 0) for layer in plan.layers for number, placed in enumerate(plan.of_layer(layer))
               if not placed.spec.is_buffer and _is_viewed(plan, placed)}
    if not weights:
        return frozenset(), frozenset()
    numbers, at = set[int](), 0
    for layer in plan.layers:
        count = len(forward_calls(plan, layer))
        if not backward_calls(plan, layer)[0]:
            numbers.update(range(at, at + count))
        at += count
    return weights, numbers | {number for calls, _, _ in _replays(plan) for number in calls}


def _is_viewed(plan: Plan, placed: Placed) -> bool:
    is_matrix_of_autotp = plan.mesh.tp > 1 and bool(cut_of(placed.spec)) and len(placed.spec.shape) > 1
    return is_matrix_of_autotp or axis_of(placed) == EXPERTS_AXIS


class LivePackedWeights:
    """The parameters that a recomputation or the model has gathered and not released, at one point of the step.

    [Note: ZeRO-3 and frozen parameters], [Note: a head that the model reads]. Calls of modules are numbered from 0 in a
    microbatch; a parameter is (layer, index in the layer, expert).
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.pinned, windows = plan, set[Key](), list(_replays(plan))
        self.replaying = {at: held for calls, _, held in windows for at in calls}
        self.ends = {end for _, end, _ in windows}
        self.reading = {at: _weight_of(plan, call.reads) for at, (_, call) in enumerate(_calls(plan)) if call.reads}
        is_outer = any(call.reads == "head" for _, call in _calls(plan))  # its forward ends behind the head's
        self.num_forward = sum(len(forward_calls(plan, layer)) for layer in plan.layers
                               if is_outer or not isinstance(_block_of(plan, layer), Head))

    def called(self, at: int, keys: list[Key]) -> None:
        """Adds the parameters `keys` of call number `at`: frozen ones of a recomputation, what a model reads."""
        if at in self.replaying:
            self.pinned.update(key for key in keys if not (_placed(self.plan, key).trainable
                                                           or key in self.replaying[at]))
        if at in self.reading:
            self.pinned.update(keys)

    def unpinned(self, at: int) -> list[Key]:
        """Returns the weight that a model reads if that model's forward is over before call number `at`.

        It is then released as other parameters are: [Note: a head that the model reads].
        """
        gone = list(self.pinned) if at == self.num_forward else []
        self.pinned.difference_update(gone)
        return gone

    def released(self, at: int) -> Set[Key]:
        """Returns, and removes, frozen parameters, (layer, index, expert) each, released before call number `at`."""
        gone = frozenset(self.pinned.difference(self.reading.values())) if at in self.ends else frozenset[Key]()
        self.pinned -= gone
        return gone


def _replays(plan: Plan) -> Iterator[tuple[range, int, Sequence[Key]]]:
    """(calls of a replay, the call before which its pinned parameters are released, what its layer holds longer)."""
    at = sum(len(forward_calls(plan, layer)) for layer in plan.layers)
    for layer in reversed(plan.layers):
        replay, rest = backward_calls(plan, layer)
        if replay:
            begin, _ = replayed(plan, layer)
            held = _keys(plan, layer, replay[0])
            yield range(at + begin, at + len(replay)), at + len(replay) + released_after(plan, layer), held
        at += len(replay) + len(rest)


class ReuseDistance:
    """Distances, in elements of the calls between, to the next use of a parameter: [Note: distance of reuse].

    `limit`: stage3_max_reuse_distance. Calls are numbered from 0 in a microbatch.
    """

    def __init__(self, plan: Plan, limit: int) -> None:
        self.limit, calls = limit, list(_calls(plan))
        self.leaf_keys = frozenset(key for layer, call in calls if call.is_leaf
                                   for key in _keys(plan, layer, call))
        total = sum(count * sum(elements(placed) * placed.used_copies for placed in plan.kinds[kind]
                                if placed.spec.is_owned) for kind, count in plan.kind_counts)

        @cache
        def numel(layer: int, refs: tuple[tuple[int, int], ...]) -> int:
            return sum(elements(plan.of_layer(layer)[number]) for number, _ in refs)

        read = {part: elements(_placed(plan, _weight_of(plan, part))) if part else 0
                for part in {call.reads for _, call in calls}}
        self.own = [0, *accumulate(numel(layer, call.own) + read[call.reads] for layer, call in calls)]
        self.inside = [0, *accumulate(total if call.is_model else numel(layer, call.inside) for layer, call in calls)]
        self.uses = defaultdict[Key, list[int]](list)
        for at, (layer, call) in enumerate(calls):
            for key in [] if call.is_leaf else _keys(plan, layer, call):
                self.uses[key].append(at)
            for key in (_owner(plan, layer, number, expert) for number, expert in call.inside):
                if key in self.leaf_keys:
                    self.uses[key].append(at)
        self.of_model = [at for at, (_, call) in enumerate(calls) if call.is_model]

    def is_short(self, key: Key, at: int) -> bool:
        """True if `key` is used within the limit from call number `at` on; the call that passes the limit counts."""
        is_leaf = key in self.leaf_keys
        found = [uses[place] for uses in (self.uses[key], *([self.of_model] if is_leaf else []))
                 if (place := bisect_left(uses, at)) < len(uses)]
        upto = self.inside if is_leaf else self.own
        return bool(found) and upto[min(found)] - upto[at] < self.limit
