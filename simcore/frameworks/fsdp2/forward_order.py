"""The order in which units ran forward: backward gathers ahead the unit that ran before the one under way.

torch 2.13 `distributed/fsdp/_fully_shard/_fsdp_param_group.py`, `comm_ctx.post_forward_order`: one list for each root.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from simcore.placement.framework import Unit

__all__ = ["ForwardOrder", "named_ahead"]

_NONE, _NEVER = -1, -2
"""In the place of a unit: none ran before; the unit itself has no forward without a backward."""


def named_ahead(units: Sequence[Unit], roots: Sequence[int]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Returns, for each unit by its index, the units that it gathers ahead in forward, and in backward.

    [Note: torchtitan's prefetch] torchtitan 0.2.2 `models/llama4/infra/parallelize.py`, apply_fsdp: with expert
    parallelism every unit names the one beside it, and of a layer its experts too; but the embedding names the first
    layer alone, and norm with head the last one, whose experts are gathered when they are needed. `roots`: number of
    the root that each unit belongs to.
    """
    forward: dict[int, list[int]] = {}
    backward: dict[int, list[int]] = {}
    experts = {unit.first: u for u, unit in enumerate(units) if unit.inner}
    outer = sorted((u for u, unit in enumerate(units) if not unit.is_root and not unit.inner),
                   key=lambda u: (roots[u], units[u].first))
    for one, other in pairwise(outer):
        if roots[one] == roots[other]:
            for at, ahead, named in ((one, other, forward), (other, one, backward)):
                inside = experts.get(units[ahead].first) if units[at].explicit else None
                named[at] = [ahead] if inside is None else [ahead, inside]
    return forward, backward


class ForwardOrder:
    """For each unit the units that ran directly before its forwards, the latest of them on top.

    A unit is given by its index in the rank's units. `roots`: number of the root that each belongs to; a root stands
    before the units that it holds.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.roots: list[int] = []
        root = 0
        for unit in units:
            root += unit.is_root
            self.roots.append(root)
        self._last = [_NONE] * (root + 1)
        self._before: list[list[int]] = [[] for _ in units]

    def ran(self, u: int) -> None:
        """Records a forward of unit `u`."""
        root = self.roots[u]
        self._before[u].append(self._last[root])
        self._last[root] = u

    def take(self, u: int) -> int:
        """Unit that ran before the latest forward of unit `u`, which is forgotten; negative for none."""
        return self._before[u].pop() if self._before[u] else _NONE

    def clear(self, units: Sequence[int]) -> None:
        """Forgets all forwards of these units, and the order under their roots."""
        for u in units:
            self._before[u].clear()
            self._last[self.roots[u]] = _NONE

    def depths(self) -> tuple[int, ...]:
        """Number of forwards of each unit that wait for a backward."""
        return tuple(map(len, self._before))

    def tops(self) -> tuple[int, ...]:
        """Unit before the latest forward of each unit, then the last unit that ran under each root."""
        return (*(before[-1] if before else _NEVER for before in self._before), *self._last)

    def follow(self, depths: Sequence[int], tops: Sequence[int]) -> None:
        """Adds or removes the forwards by which the numbers `depths` of each unit grew; `tops`: what they led to."""
        for before, grown, top in zip(self._before, depths, tops, strict=False):
            if grown > 0:
                before.append(top)
            elif grown < 0:
                before.pop()
        self._last[:] = tops[len(self._before):]
