"""The trace of ZeRO-3: parameters that each call of a module needs, and the lifetime of frozen ones.

[Note: ZeRO-3 and frozen parameters] DeepSpeed 0.19.6 `runtime/zero/partitioned_param_coordinator.py`,
update_recompute_parameters and release_sub_module: frozen parameters that a replay gathers belong to the module
whose backward began last; they stay until that is over and are then released, even if used again soon. Backward gathers
them again, each when its module is called.

[Note: ZeRO-3 and weights in 4 bits] bitsandbytes 0.50.2 `autograd/_functions.py`, MatMul4Bit: `ctx.tensors` is a view
of the gathered weight. DeepSpeed drops its own reference (`free_param`), so the first gathered copy of a microbatch
exists until the graph is freed: with the loss, when backward is over (transformers 5.23 `trainer.py`, training_step),
whether layers are replayed or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from simcore.frameworks.common.module_order import Calls, backward_calls, forward_calls, released_after, replayed
from simcore.frameworks.deepspeed.hpz import Key
from simcore.frameworks.deepspeed.strategy import PERSISTENT
from simcore.placement.plan import Placed, Plan

__all__ = ["LivePackedWeights", "bytes_by_dtype", "recorded", "seen_by_nodes"]


def bytes_by_dtype(params: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Returns (dtype, sum of bytes) for each dtype in `params`, in alphabetical order of dtypes.

    `params`: (dtype, bytes) of parameters. Each pair is one all-gather (`_all_gather_coalesced`, sort_dtypes).
    """
    sizes = Counter[str]()
    for dtype, num_bytes in params:
        sizes[dtype] += num_bytes
    return sorted(sizes.items())


def recorded(plan: Plan) -> Iterator[list[Key]]:
    """Yields, for every call of a module in a microbatch, the parameters that it needs.

    A parameter is (layer number of the whole model, index in the layer); often there are none. Calls of forward come
    first, in order, then those of backward, from the last layer to the first.
    Parameters that stay gathered are left out.
    """
    for layer in plan.layers:
        yield from _keys(plan, layer, forward_calls(plan, layer))
    for layer in reversed(plan.layers):
        for calls in backward_calls(plan, layer):
            yield from _keys(plan, layer, calls)


def _keys(plan: Plan, layer: int, calls: Calls) -> list[list[Key]]:
    """Parameters that are fetched for calls; a tied head uses the embedding's."""
    owners = plan.graph.owners
    calls_keys = [[owners.get((layer, number), (layer, number)) for number in call] for call in calls]
    return [[key for key in keys if _placed(plan, key).policy.name != PERSISTENT] for keys in calls_keys]


def _placed(plan: Plan, key: Key) -> Placed:
    return plan.of_layer(key[0])[key[1]]


def seen_by_nodes(plan: Plan) -> Set[Key]:
    """Returns the packed weights, (layer, index in the layer) each, that autograd's graph keeps alive.

    They are those that backward uses: [Note: ZeRO-3 and weights in 4 bits].
    """
    keys_of_calls = (key for layer in plan.layers for calls in backward_calls(plan, layer)
             for keys in _keys(plan, layer, calls) for key in keys)
    return {key for key in keys_of_calls if (packed := _placed(plan,
                                                               key).policy.at_rest.packed) and not packed.is_tensor}


class LivePackedWeights:
    """The frozen parameters that a recomputation has gathered and not released, at one point of the step.

    [Note: ZeRO-3 and frozen parameters]. Calls of modules are numbered from 0 in a microbatch; a parameter is (layer,
    index in the layer).
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.pinned, windows = plan, set[Key](), list(_replays(plan))
        self.replaying = {at for calls, _ in windows for at in calls}
        self.ends = {end for _, end in windows}

    def called(self, at: int, keys: list[Key]) -> None:
        """Adds the frozen parameters `keys` of call number `at`, if that call is part of a recomputation."""
        if at in self.replaying:
            self.pinned.update(key for key in keys if not _placed(self.plan, key).trainable)

    def released(self, at: int) -> Set[Key]:
        """Returns, and removes, frozen parameters, (layer, index) each, that are released before call number `at`."""
        gone = frozenset(self.pinned) if at in self.ends else frozenset[Key]()
        self.pinned -= gone
        return gone


def _replays(plan: Plan) -> Iterator[tuple[range, int]]:
    """(numbers of the calls of a replay, number of the call before which its pinned parameters are released)."""
    at = sum(len(forward_calls(plan, layer)) for layer in plan.layers)
    for layer in reversed(plan.layers):
        replay, rest = backward_calls(plan, layer)
        if replay:
            begin, _ = replayed(plan, layer)
            yield range(at + begin, at + len(replay)), at + len(replay) + released_after(plan, layer)
        at += len(replay) + len(rest)
