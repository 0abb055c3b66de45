"""Parameter groups that ZeRO-1 and 2 lay flat and cut one by one: that of all ranks, and those of experts.

DeepSpeed 0.19.6 `moe/utils.py`, split_params_into_different_moe_groups_for_optimizer: experts are taken out of the
group of all others, and go into groups of at most 178,956,971 elements, whose ranks are those with the same experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from simcore.frameworks.deepspeed.experts.layers import EXPERTS_AXIS, axis_of
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.plan import Plan

__all__ = ["Group", "parameter_groups"]

ALIGN: Final = 2
"""Alignment in elements for each rank: nccl_start_alignment_factor."""
_LARGEST: Final = 178_956_971
"""Elements of a group of experts."""


@dataclass(frozen=True)
class Group:
    """One flat buffer of trained parameters that ranks cut into equal parts.

    `axis`: the mesh axis of those ranks, `ranks` their number, `at` this rank's coordinate. `start`: first element of
    the buffer if all buffers lay end to end. `entries`: (layer number of the whole model, index in the layer, elements)
    of each parameter, in order. `is_matrices`: Muon updates all of them.
    """

    axis: str
    ranks: int
    at: int
    start: int
    entries: tuple[tuple[int, int, int], ...]
    is_matrices: bool = False

    @cached_property
    def elements(self) -> int:
        """Elements of parameters."""
        return sum(numel for *_, numel in self.entries)

    @property
    def aligned(self) -> int:
        """Elements of the buffer, rounded up so that the parts of all ranks are equal."""
        unit = ALIGN * self.ranks
        return math.ceil(self.elements / unit) * unit

    @property
    def part(self) -> int:
        """Elements of the part of one rank."""
        return self.aligned // self.ranks

    def owners(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields (rank of the group, elements) of each piece of the buffers' elements from `start` to `end`."""
        start, end, part = start - self.start, end - self.start, self.part
        for owner in range(start // part, (end - 1) // part + 1):
            yield owner, min(end, (owner + 1) * part) - max(start, owner * part)

    def own(self, coordinate: int) -> tuple[int, int]:
        """Returns (first element, end) of the part of the rank at `coordinate`, as the buffers lie end to end."""
        return self.start + coordinate * self.part, self.start + (coordinate + 1) * self.part


@lru_cache(maxsize=64)
def parameter_groups(plan: Plan, dense_axis: str, *, round_robin: bool) -> tuple[Group, ...]:
    """Returns the parameter groups of a rank's plan under ZeRO-1 and 2, in order; one without DeepSpeed's experts.

    `dense_axis`: that of all ranks. The order inside is that of registration, or round robin over the ranks
    (`_round_robin_reorder`).
    """
    every = [(layer, number, placed.used) for layer in plan.layers
             for number, placed in enumerate(plan.of_layer(layer)) if placed.trainable]
    experts = [one for one in every if _is_experts(plan, one)]
    dense = [one for one in every if not _is_experts(plan, one)] if experts else every
    ranks = plan.mesh.axis(dense_axis).size if round_robin else 1
    found: list[Group] = []
    for axis, entries, is_matrices in (*((dense_axis, *one) for one in _matrices_first(plan, dense)),
                                       *((EXPERTS_AXIS, one, False) for one in _split(experts))):
        one = plan.mesh.axis(axis)
        start = found[-1].start + found[-1].aligned if found else 0
        turned = [e for rank in range(ranks) for e in entries[rank::ranks]] if axis == dense_axis else entries
        found.append(Group(axis, one.size, one.coordinate(plan.rank), start, tuple(turned), is_matrices))
    return tuple(found)


def _matrices_first(plan: Plan, entries: list[tuple[int, int, int]]) -> list[tuple[list[tuple[int, int, int]], bool]]:
    """(parameters, are they Muon's): one group, or Muon's by their shapes, largest first, and then all others.

    0.19.6 `runtime/zero/muon/original_muon.py`, MuonWithAuxAdam: sorted by `x.size()`, in reverse.
    """
    states = OPTIMIZERS[plan.framework.optimizer.name].matrix_states
    if not states:
        return [(entries, False)]
    muons = {one: any(name in states for name, _ in plan.of_layer(one[0])[one[1]].policy.optimizer_states)
             for one in entries}
    by_shape = sorted(entries, key=lambda one: plan.of_layer(one[0])[one[1]].used_shape, reverse=True)
    split = [([one for one in by_shape if muons[one]], True), ([one for one in entries if not muons[one]], False)]
    return [one for one in split if one[0]]


def _is_experts(plan: Plan, entry: tuple[int, int, int]) -> bool:
    return axis_of(plan.of_layer(entry[0])[entry[1]]) == EXPERTS_AXIS


def _split(entries: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Groups of experts, filled in order; a larger parameter is a group by itself."""
    groups: list[list[tuple[int, int, int]]] = []
    filled = 0
    for entry in entries:
        if not groups or filled + entry[2] > _LARGEST:
            groups.append([])
            filled = 0
        groups[-1].append(entry)
        filled += entry[2]
    return groups
