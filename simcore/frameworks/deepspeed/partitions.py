"""Partitions of the flat group of trained parameters under ZeRO-1 and 2: [Note: ZeRO-1 and ZeRO-2]."""

from __future__ import annotations

import math

import numpy as np

from simcore.frameworks.deepspeed.experts.groups import Group, parameter_groups
from simcore.frameworks.deepspeed.states.low_bit import sub_groups
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.plan import AtRestBytes, Plan
from simcore.placement.strategy import EXACT_RANKS
from simcore.units import dtype_bytes

__all__ = ["aligned", "exact_in_parts", "flat_padding", "gradient_elements", "groups_of", "held_elements",
           "largest_piece", "largest_trained", "most_gradients", "of_copies", "places", "shards_of", "states_beside",
           "touching", "trained_of", "updated_parts", "updated_shapes"]


def trained_of(plan: Plan, layer: int) -> list[tuple[int, int]]:
    """Returns (index in the layer, elements of the whole parameter) of each trained parameter of a layer.

    `layer`: its number in the whole model, embedding 0.
    """
    return [(number, placed.used) for number, placed in enumerate(plan.of_layer(layer)) if placed.trainable]


def largest_trained(plan: Plan) -> int:
    """Returns the elements of the largest trained parameter, where each expert's is a parameter; 0 if there is none."""
    return max((placed.used // placed.used_copies for kind, _ in plan.kind_counts for placed in plan.kinds[kind]
                if placed.trainable), default=0)


def flat_padding(plan: Plan) -> int:
    """Returns the elements of ZeRO-1 and 2's flat buffer of all trained parameters that belong to none."""
    return aligned(plan) - _trained(plan)


def groups_of(plan: Plan) -> tuple[Group, ...]:
    """Returns the parameter groups of a rank's plan, in order; one without DeepSpeed's experts."""
    strategy = plan.framework.strategy_as(ZeroStrategy)
    return parameter_groups(plan, strategy.axis, round_robin=strategy.round_robin)


def shards_of(plan: Plan) -> list[list[int]]:
    """Returns the elements of this rank's shard of every trained parameter under ZeRO-3, in order, for each group.

    Every expert's matrix is a parameter.
    """
    trained = [[plan.of_layer(layer)[number] for layer, number, _ in group.entries] for group in groups_of(plan)]
    return [[placed.padded // placed.used_copies for placed in group for _ in range(placed.used_copies)]
            for group in trained]


def updated_parts(plan: Plan) -> list[int]:
    """Returns the elements of each flat part that the optimizer updates at once: of a group, or a sub-group of it."""
    strategy = plan.framework.strategy_as(ZeroStrategy)
    if strategy.stage < 3:
        return [group.part for group in groups_of(plan)]
    return [one for group in shards_of(plan) for one in sub_groups(group, strategy.sub_group)]


def _trained(plan: Plan) -> int:
    return sum(count * sum(p.used for p in plan.kinds[kind] if p.trainable) for kind, count in plan.kind_counts)


def aligned(plan: Plan) -> int:
    """Returns the elements of ZeRO-1 and 2's flat buffers of all trained parameters, one for each parameter group.

    Each is rounded up so that the partitions of all its ranks are equal.
    """
    return sum(group.aligned for group in groups_of(plan))


def places(plan: Plan) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns (first element, end) of each trained parameter in the flat buffers, as they lie end to end.

    Keys are (layer number of the whole model, index in the layer).
    """
    ranges = {}
    for group in groups_of(plan):
        at = group.start
        for layer, number, numel in group.entries:
            ranges[layer, number] = (at, at + numel)
            at += numel
    return ranges


def of_copies(plan: Plan, key: tuple[int, int], span: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns (first element, end) of each parameter that an entry of `places` stands for: one, or one an expert.

    `key`: (layer number of the whole model, index in the layer); `span`: the entry's value. Parameters of one name lie
    together here; in upstream's order of registration those of one expert do.
    """
    (start, end), copies = span, plan.of_layer(key[0])[key[1]].used_copies
    size = (end - start) // copies
    return [(start + number * size, start + (number + 1) * size) for number in range(copies)]


def _every(plan: Plan, group: Group) -> list[tuple[int, int]]:
    found = places(plan)
    return [span for layer, number, _ in group.entries
            for span in of_copies(plan, (layer, number), found[layer, number])]


def touching(plan: Plan, coordinate: int) -> list[int]:
    """Returns the elements of every parameter that is, at least in part, in the partition of one rank.

    `coordinate`: the rank's place on the data-parallel axis; of experts the rank's own place on theirs counts. A
    parameter counts with all of its elements.
    """
    dense, *experts = groups_of(plan)
    return [numel for group, at in ((dense, coordinate), *((one, one.at) for one in experts))
            for numel in _touching(plan, group, at)]


def _touching(plan: Plan, group: Group, coordinate: int) -> list[int]:
    low, high = group.own(coordinate)
    return [end - start for start, end in _every(plan, group) if start < high and end > low]


def gradient_elements(plan: Plan, *, exact: bool = False) -> int:
    """Returns the elements of a rank's averaged gradients: all those of each parameter in its partitions.

    `exact`: of this rank; otherwise of the rank with the most. DeepSpeed 0.19.6 `stage_1_and_2.py`:1680,
    copy_grads_in_partition: the sum of `param_in_partition.numel()`. A rank without parameters has a partition of zeros
    (get_flat_partition).
    """
    return sum(sum(_touching(plan, group, group.at)) or group.part if exact else most_gradients(plan, group)
               for group in groups_of(plan))


def largest_piece(plan: Plan, group: Group) -> int:
    """Returns the elements of the largest piece of a parameter in the rank's part of a group; 0 if it has none."""
    low, high = group.own(group.at)
    return max((min(end, high) - max(start, low) for start, end in _every(plan, group)), default=0)


def held_elements(plan: Plan, group: Group, of_none: int) -> int:
    """Returns the elements of all parameters of a group that have one in the rank's part; `of_none` if there is none.

    Of the rank with the most if not every rank is simulated by itself.
    """
    strategy = plan.framework.strategy_as(ZeroStrategy)
    if strategy.step_varies_by_rank and plan.mesh.size <= EXACT_RANKS:
        return sum(_touching(plan, group, group.at)) or of_none
    return most_gradients(plan, group)


def most_gradients(plan: Plan, group: Group) -> int:
    """Returns the elements of the averaged gradients of the rank that has the most of a group."""
    part = group.part
    ends = np.array(sorted(_every(plan, group)), dtype=np.int64).reshape(-1, 2) - group.start
    lows = np.arange(group.ranks, dtype=np.int64) * part
    first = np.searchsorted(ends[:, 1], lows, side="right")
    ends_after = np.searchsorted(ends[:, 0], lows + part, side="left")
    summed = np.concatenate([[0], np.cumsum(ends[:, 1] - ends[:, 0])])
    return int(np.maximum(summed[ends_after] - summed[first], part * (ends_after == first)).max(initial=0))


def exact_in_parts(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns this rank's bytes at rest by component of the model, under ZeRO-1 and 2.

    Gradients and states are those of the elements in its own partition, momenta of Muon those of whole matrices.
    Tensors are in the order of registration, as
    one parameter group (`bit16_groups_flat`).
    """
    totals, where = dict[str, AtRestBytes](), places(plan)
    matrix_states = OPTIMIZERS[plan.framework.optimizer.name].matrix_states
    own = {entry[:2]: group.own(group.at) for group in groups_of(plan) for entry in group.entries}
    owned = ((layer, number, placed) for layer in plan.layers for number, placed in enumerate(plan.of_layer(layer))
             if placed.spec.is_owned)
    for layer, number, placed in owned:
        start, end = where.get((layer, number), (0, 0))
        low, high = own.get((layer, number), (0, 0))
        numel, inside = end - start, max(0, min(end, high) - max(start, low))
        states = sum(dtype_bytes(layout.dtype) * (numel * (inside > 0) if name in matrix_states else inside)
                     for name, layout in placed.policy.optimizer_states if layout.space == "device")
        component, here = placed.spec.component, placed.policy.grad.space == "device"
        grads = here * inside * dtype_bytes(placed.policy.grad.dtype)
        totals[component] = totals.get(component, AtRestBytes()) + AtRestBytes(
            placed.rest_bytes, grads, states, placed.local, numel)
    return totals


# ---- Muon: [Note: Muon under ZeRO] in `states/muon.py` --------------------------------------------------------------
def states_beside(plan: Plan) -> dict[str, int]:
    """Returns the bytes of flat states, by name, beyond those that the rank's tensors count: [Note: Muon under ZeRO].

    Momenta are of whole matrices; masters and moments have their group's alignment.
    """
    counted = dict[str, int]()
    for kind, count in plan.kind_counts:
        for name, size in plan.kinds[kind].state_bytes.items():
            counted[name] = counted.get(name, 0) + count * size
    kept, size = OPTIMIZERS["muon"], dtype_bytes(plan.framework.compute_dtype)
    found = dict.fromkeys(counted, 0)
    for group in groups_of(plan):
        for name in ("master_param", *(() if group.is_matrices else kept.states)):
            found[name] += 4 * group.part
        for name in kept.matrix_states if group.is_matrices else ():
            found[name] += size * held_elements(plan, group, of_none=0)
    return {name: found[name] - counted[name] for name in found}


def updated_shapes(plan: Plan, group: Group) -> list[tuple[int, int, int]]:
    """Returns (matrices, the smaller, the larger side) of each parameter of the group that the rank updates.

    Those with an element in its part.
    """
    low, high = group.own(group.at)
    found, shapes = places(plan), []
    for layer, number, _ in group.entries:
        placed = plan.of_layer(layer)[number]
        *many, rows, columns = placed.used_shape
        for start, end in of_copies(plan, (layer, number), found[layer, number]):
            if start < high and end > low:
                shapes.append((math.prod(many), min(rows, columns), max(rows, columns)))
    return shapes
