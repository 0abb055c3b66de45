"""Folding: ranks that hold equal tensors and communicate with equal ranks are one class.

Input: mesh and the cuts of every tensor. Output: `RankClass`es. Sizes of tensors change only at breakpoints of an axis
coordinate (`layout.shard_intervals`); ranks are compared only along the axes on which something changes, and classes
are refined until members of one class meet the same classes in every group (coarsest equitable partition).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from simcore.models.graph import ModelGraph
from simcore.placement.framework import Framework, TensorPolicies
from simcore.placement.layout import shard_intervals
from simcore.placement.mesh import Axis, IntArray, Mesh
from simcore.placement.plan import cuts

__all__ = ["RankClass", "coordinate_text", "fold", "format_ranks", "joined", "unfolded", "unfolded_one"]


_MANY = 256
"""The largest number of runs of ranks that are still listed one by one."""
_CLOSE = 8
"""Values up to so many times their number are counted, others sorted."""


@dataclass(frozen=True, eq=False)
class RankClass:
    """Ranks of one pipeline stage that are simulated as one: equal tensors, and equal ranks to talk to.

    `representative`: the rank that is simulated, their first. `offsets`: the ranks' positions, in rising order, among
    the first `period` ranks of the stage; the pattern repeats in each further `period` ranks.
    """

    stage: int
    representative: int
    num_ranks: int
    offsets: IntArray
    period: int

    def members(self, mesh: Mesh) -> IntArray:
        """Returns the numbers of all ranks of the class, in rising order."""
        repeats = np.arange(0, mesh.stage_size, self.period, dtype=np.int64)
        base: IntArray = self.stage * mesh.stage_size + (repeats[:, None] + self.offsets[None, :]).ravel()
        return base

    def rank_text(self, mesh: Mesh) -> tuple[str, ...]:
        """Returns all ranks of the class as ranges in text: ("0-3",), or ("0-128:64",) for every 64th rank.

        Whole stages and long runs are written without making a list of their ranks.
        """
        first = self.stage * mesh.stage_size
        if len(self.offsets) == self.period and mesh.stage_size > 1:
            return (f"{first}-{first + mesh.stage_size - 1}",)
        starts, ends = self.runs
        if self.period == mesh.stage_size and (starts < ends).all():
            return tuple(f"{a}-{b}" for a, b in zip((first + starts).tolist(), (first + ends).tolist(), strict=True))
        return format_ranks(self.members(mesh))

    @cached_property
    def runs(self) -> tuple[IntArray, IntArray]:
        """The first and the last offset of each run of consecutive offsets, as two arrays."""
        return _runs(self.offsets)

    def coordinates(self, mesh: Mesh, axis: Axis) -> int | str:
        """Returns the coordinates of the ranks on `axis`: one number, or several as text ("0-3", "0,2")."""
        return _coordinates(self, mesh, axis)


@lru_cache(maxsize=4096)
def _coordinates(ranks: RankClass, mesh: Mesh, axis: Axis) -> int | str:
    if axis.name == "pp":
        return ranks.stage
    if axis.stride % ranks.period == 0:
        return coordinate_text(axis, np.arange(0, axis.stride * axis.size, axis.stride, dtype=np.int64))
    inside = ranks.period % (axis.stride * axis.size) == 0
    return _run_text(axis, *(ranks.runs if inside else _runs(ranks.members(mesh))))


def fold(graph: ModelGraph, mesh: Mesh, framework: Framework) -> tuple[RankClass, ...]:
    """Returns the classes of ranks that are simulated as one: stage by stage, in a stage by their first rank.

    Ranks of a class hold tensors of equal sizes (parts of a `Flat` cut count as equal) and communicate with ranks of
    the same classes. Every rank is in one class.
    """
    apart = tuple((one.axes[0], one.heaviest()) for one in framework.dealt)
    return _fold(graph, mesh, framework.policies(graph), framework.communicators, apart)


@lru_cache(maxsize=256)
def _fold(graph: ModelGraph, mesh: Mesh, policies: TensorPolicies, communicators: tuple[str, ...],
          apart: tuple[tuple[str, int], ...]) -> tuple[RankClass, ...]:
    """`apart`: coordinates that are classes of their own; where parameters are dealt out, those with most of them."""
    edges = _breakpoints(graph, mesh, policies, apart)
    if not edges:
        offsets = np.arange(1, dtype=np.int64)
        return _per_stage(mesh, [offsets], 1)
    met = [mesh.axis(name) for name in communicators if name != "pp"]
    step, period = _window(mesh, [mesh.axis(name) for name in edges], met)
    places = np.arange(0, period, step, dtype=np.int64)
    facts = [np.searchsorted(np.array(stops), mesh.axis(name).coordinates(places), side="right")
             for name, stops in edges.items()]
    labels = _refine(_label(facts), places, _inside(met, step, period))
    fine = np.arange(step, dtype=np.int64)
    groups = [(places[labels == label][:, None] + fine[None, :]).ravel() for label in _in_order(labels)]
    return _per_stage(mesh, groups, period)


def unfolded(mesh: Mesh) -> tuple[RankClass, ...]:
    """Returns one class for every rank of the mesh, in the order of ranks: nothing is folded."""
    groups = [np.array([n], dtype=np.int64) for n in range(mesh.stage_size)]
    return _per_stage(mesh, groups, mesh.stage_size)


def joined(classes: Sequence[RankClass]) -> RankClass:
    """Returns one class with the ranks of several classes, which must have the same stage and period.

    Its representative is that of the first of `classes`.
    """
    offsets = np.sort(np.concatenate([c.offsets for c in classes]))
    return RankClass(classes[0].stage, classes[0].representative, sum(c.num_ranks for c in classes), offsets,
                     classes[0].period)


def unfolded_one(mesh: Mesh, rank: int) -> RankClass:
    """Returns a class that holds only `rank`."""
    offset = np.array([rank % mesh.stage_size], dtype=np.int64)
    return RankClass(rank // mesh.stage_size, rank, 1, offset, mesh.stage_size)


def _per_stage(mesh: Mesh, groups: Sequence[IntArray], period: int) -> tuple[RankClass, ...]:
    repeats = mesh.stage_size // period
    return tuple(RankClass(stage, stage * mesh.stage_size + int(group[0]), len(group) * repeats, group, period)
                 for stage in range(mesh.pp) for group in groups)


def _breakpoints(graph: ModelGraph, mesh: Mesh, policies: TensorPolicies, apart: tuple[tuple[str, int], ...]
                 ) -> dict[str, list[int]]:
    """Axis -> coordinates at which some tensor's size changes."""
    edges: dict[str, set[int]] = {}
    for shape, layout in cuts(graph, policies):
        local = [*shape]
        for name, cut in layout:
            size, at = mesh.axis(name).size, cut.dim + 1
            for edge in shard_intervals(local[at], size):
                edges.setdefault(name, set()).add(edge)
            local[at] = -(-local[at] // size)
    for name, coordinate in apart:
        inside = [edge for edge in (coordinate, coordinate + 1) if 0 < edge < mesh.axis(name).size]
        if inside:
            edges.setdefault(name, set()).update(inside)
    return {name: sorted(found) for name, found in edges.items()}


def _window(mesh: Mesh, cut: Sequence[Axis], met: Sequence[Axis]) -> tuple[int, int]:
    """The smallest (step, period) of ranks in a stage on which all axes repeat: groups never straddle its borders."""
    step = math.gcd(*(axis.stride for axis in cut))
    period = math.lcm(*(axis.stride * axis.size for axis in cut))
    period = mesh.stage_size if mesh.stage_size % period else period
    borders = [border for axis in met for border in (axis.stride, axis.stride * axis.size)]
    while not all(_nested(border, step) and _nested(border, period) for border in borders):
        for border in borders:
            step = step if _nested(border, step) else math.gcd(step, border)
            period = period if _nested(border, period) else math.lcm(period, border)
    return step, period


def _nested(a: int, b: int) -> bool:
    return a % b == 0 or b % a == 0


def _inside(met: Sequence[Axis], step: int, period: int) -> list[Axis]:
    """Axes as the places of a window see them; a group that is wider than the period meets each of its places alike."""
    bounds = [(a.name, max(a.stride, step), min(a.stride * a.size, period)) for a in met]
    return [Axis(name, high // low, low) for name, low, high in bounds if high > low]


def _label(facts: Sequence[IntArray]) -> IntArray:
    """A number for each distinct row of facts (column by column, which is much faster than rows at once)."""
    labels = np.zeros_like(facts[0])
    for fact in facts:
        labels = _numbered(labels * (int(fact.max()) + 1) + fact)
    return labels


def _numbered(values: IntArray) -> IntArray:
    """For each value its place among the distinct ones in rising order; values are not negative.

    Counted where they lie close together, which is linear in their number; `np.unique` sorts.
    """
    span = int(values.max()) + 1
    if span > _CLOSE * len(values):
        return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)
    seen = np.zeros(span, dtype=np.int64)
    seen[values] = 1
    return np.asarray((np.cumsum(seen) - 1)[values], dtype=np.int64)


def _refine(labels: IntArray, places: IntArray, axes: Sequence[Axis]) -> IntArray:
    while True:
        facts = [labels, *(_met(labels, places, axis) for axis in axes)]
        finer = _label(facts)
        if finer.max() == labels.max():
            return finer
        labels = finer


def _met(labels: IntArray, places: IntArray, axis: Axis) -> IntArray:
    """For each place a number for the multiset of classes in its group on `axis`."""
    group = places - axis.coordinates(places) * axis.stride
    group_ids, kinds = _numbered(group), int(labels.max()) + 1
    counts = np.bincount(group_ids * kinds + labels, minlength=(int(group_ids.max()) + 1) * kinds).reshape(-1, kinds)
    return _label([*counts.T])[group_ids]


def _in_order(labels: IntArray) -> list[int]:
    _, first = np.unique(labels, return_index=True)
    return [int(labels[i]) for i in sorted(first)]


def format_ranks(ranks: IntArray) -> tuple[str, ...]:
    """Returns ranks, which must be in rising order, as ranges: [0, 1, 2, 3] -> ("0-3",).

    [0, 64, 128] -> ("0-128:64",), every 64th. Runs are found greedily from the left. More than 256 equal runs at equal
    distances, [0, 1, 4, 5, 8, 9, ...], become one range for each position in a run: ("0-800:4", "1-801:4").
    """
    starts, ends = _runs(ranks)
    if len(starts) > _MANY and len(np.unique(ends - starts)) == len(np.unique(np.diff(starts))) == 1:
        stride = int(starts[1] - starts[0])
        places = range(int(ends[0] - starts[0]) + 1)
        return tuple(_ranks_text(int(starts[0]) + place, int(starts[-1]) + place, stride) for place in places)
    values, steps = ranks.tolist(), np.diff(ranks)
    turns = [*(1 + np.flatnonzero(np.diff(steps))).tolist(), len(steps)]
    out: list[str] = []
    at, turn = 0, 0
    while at < len(values):
        while turn < len(turns) and turns[turn] <= at:
            turn += 1
        stop = turns[turn] if turn < len(turns) else at
        out.append(_ranks_text(values[at], values[stop], int(steps[at]) if stop > at else 1))
        at = stop + 1
    return tuple(out)


def _ranks_text(first: int, last: int, stride: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}" + (f":{stride}" if stride != 1 else "")


def coordinate_text(axis: Axis, ranks: IntArray) -> int | str:
    """Returns the coordinates of some ranks on `axis`: one number, or several as text ("0-3", "0-6:2").

    `ranks` must be in rising order.
    """
    return _run_text(axis, *_runs(ranks))


def _runs(ranks: IntArray) -> tuple[IntArray, IntArray]:
    breaks = np.flatnonzero(np.diff(ranks) != 1)
    return ranks[np.concatenate([[0], breaks + 1])], ranks[np.concatenate([breaks, [-1]])]


def _run_text(axis: Axis, starts: IntArray, ends: IntArray) -> int | str:
    """Ranks in a row stand at coordinates in a row, round the axis once or more: the ends of runs say which."""
    first, last = starts // axis.stride, ends // axis.stride
    start = first % axis.size
    stop = start + np.minimum(last - first, axis.size - 1) + 1
    size = 2 * axis.size + 1
    open_runs = np.cumsum(np.bincount(start, minlength=size) - np.bincount(stop, minlength=size))[:-1]
    values = np.flatnonzero(open_runs.reshape(2, axis.size).any(axis=0))
    return int(values[0]) if len(values) == 1 else ",".join(format_ranks(values))
