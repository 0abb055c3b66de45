"""Step time: programs of all classes costed, run on the timeline, extrapolated to all microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcore.cost import DTYPES, collective_ns, compute_ns
from simcore.fold import RankClass
from simcore.mesh import IntArray, Mesh
from simcore.program import Phase, Program
from simcore.schedule import steady_microbatch
from simcore.streams import Track, tracks
from simcore.tape import Kernel, Op
from simcore.tile import AMOUNT, AUX, OP, SLOT
from simcore.timeline import ClassTimes, run
from simcore.topology import Topology

__all__ = ["Clocked", "clock"]

_DTYPE_ID = {name: DTYPES.index(name) for name in ("fp32", "bf16", "fp16")}


@dataclass(frozen=True, eq=False)
class Clocked:
    """Times of one step, in ns.

    `steady`: the last two microbatches took the same time in every class (or there is nothing to extrapolate).
    `row_ns`: for each class, when each row of its program was reached on the compute stream.
    """

    step_ns: int
    phase_ns: dict[str, int]
    waited_ns: int
    steady: bool
    forward_flops: int
    row_ns: tuple[IntArray, ...]
    times: tuple[ClassTimes, ...]


def clock(programs: Sequence[Program], classes: Sequence[RankClass], mesh: Mesh, topology: Topology, compute: str,
          extra_microbatches: int) -> Clocked:
    """Run programs that wrote out some microbatches; `extra_microbatches` more are extrapolated."""
    compiled = [_track(program, mesh, topology, compute) for program in programs]
    times = run(compiled, _Wires(programs, classes, mesh, topology))
    periods = [_periods(program, track, t) for program, track, t in zip(programs, compiled, times, strict=True)]
    steady = not extra_microbatches or all(len(p) >= 2 and p[-1] == p[-2] for p in periods)
    period = max((p[-1] for p in periods if p), default=0)
    weights = [np.where(p.microbatch == steady_microbatch(mesh.pp), 1 + extra_microbatches, 1) for p in programs]
    worst = max(range(len(times)), key=lambda i: (times[i].end, -i))
    rows = tuple(_row_ns(track, t, len(p.columns)) for track, t, p in zip(compiled, times, programs, strict=True))
    return Clocked(
        max(t.end for t in times) + period * extra_microbatches,
        _phases(programs[worst], rows[worst], weights[worst]),
        _waited(compiled[worst], times[worst], weights[worst]), steady,
        sum(_forward_flops(p, w) * c.num_ranks for p, w, c in zip(programs, weights, classes, strict=True)), rows,
        tuple(times))


def _track(program: Program, mesh: Mesh, topology: Topology, compute: str) -> Track:
    columns = program.columns
    kernels = columns[:, OP] == Op.COMPUTE
    ns = np.zeros(len(columns), dtype=np.int64)
    mine = columns[kernels]
    ns[kernels] = compute_ns(topology.device, mine[:, SLOT], mine[:, AMOUNT], mine[:, AUX],
                             np.full(len(mine), _DTYPE_ID[compute]))
    comms = list(program.tables.comms)
    known: dict[tuple[int, int], int] = {}

    def call_ns(comm: int, payload: int) -> int:
        if (comm, payload) not in known:
            collective, axis_name, _ = comms[comm]
            axis = mesh.axis(axis_name)
            size = 2 if collective == "send_recv" else axis.size
            link = topology.link(size, axis.stride, mesh.size)
            known[comm, payload] = collective_ns(collective, payload, size, link)
        return known[comm, payload]

    return tracks(program, ns, call_ns)


class _Wires:
    """Implements `timeline.Wiring`: communicators by the numbers that each class's own program gave them."""

    def __init__(self, programs: Sequence[Program], classes: Sequence[RankClass], mesh: Mesh,
                 topology: Topology) -> None:
        self.mesh, self.classes, self.topology = mesh, classes, topology
        self.axes = [[axis for _, axis, _ in program.tables.comms] for program in programs]
        self.many = len({c.stage for c in classes}) < len(classes)
        self.known: dict[tuple[int, int], tuple[int, ...]] = {}
        self.links: dict[str, str] = {}
        self.class_of = {(c.stage, c.period, int(o)): i for i, c in enumerate(classes) for o in c.offsets} \
            if self.many else {}

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        if not self.many:  # one class a stage meets only itself
            return (number,)
        if (number, comm) not in self.known:
            self.known[number, comm] = self._find(number, self.axes[number][comm])
        return self.known[number, comm]

    def link(self, number: int, comm: int) -> str:
        name = self.axes[number][comm]
        if name not in self.links:
            axis = self.mesh.axis(name)
            self.links[name] = self.topology.link(axis.size, axis.stride, self.mesh.size).name
        return self.links[name]

    def lane(self, number: int) -> int:
        return self.classes[number].representative % self.mesh.stage_size

    def _find(self, number: int, axis: str) -> tuple[int, ...]:
        mine = self.classes[number]
        group = self.mesh.group(mine.representative, axis)
        size = self.mesh.stage_size
        found = {self.class_of[mine.stage, mine.period, rank % size % mine.period] for rank in group}
        return tuple(sorted(found))


def _periods(program: Program, track: Track, times: ClassTimes) -> list[int]:
    """Time from one backward pass's begin to the next one's."""
    rows = _row_ns(track, times, len(program.columns))
    backward = (program.phase == Phase.BACKWARD) | (program.phase == Phase.RECOMPUTE)
    starts = [int(rows[int(np.argmax(inside))]) for m in range(int(program.microbatch.max()) + 1)
              if (inside := backward & (program.microbatch == m)).any()]
    return [b - a for a, b in pairwise(starts)]


def _row_ns(track: Track, times: ClassTimes, num_rows: int) -> IntArray:
    """When the compute stream reaches each row."""
    ends = np.array(times.item_ends, dtype=np.int64)
    item_rows = np.array([item.row for item in track.items], dtype=np.int64)
    busy = np.cumsum([item.ns for item in track.items])
    late = ends - busy  # what waiting has added up to, after each item
    at = np.searchsorted(item_rows, np.arange(num_rows), side="left")
    before = np.concatenate([[0], late])[at]
    row_ns: IntArray = track.clock + before
    return row_ns


def _phases(program: Program, rows: IntArray, weight: IntArray) -> dict[str, int]:
    """Compute-stream time by phase; recompute counts as backward, the loss as forward."""
    spent = np.diff(np.concatenate([[0], rows])) * weight
    groups = {"forward": (Phase.FORWARD, Phase.LOSS), "backward": (Phase.BACKWARD, Phase.RECOMPUTE),
              "optimizer": (Phase.OPTIMIZER,)}
    return {name: int(spent[np.isin(program.phase, codes)].sum()) for name, codes in groups.items()}


def _waited(track: Track, times: ClassTimes, weight: IntArray) -> int:
    """Time in which the compute stream only waited."""
    rows = np.minimum([item.row for item in track.items], len(weight) - 1)
    return int((np.array(times.waited_at) * weight[rows]).sum())


def _forward_flops(program: Program, weight: IntArray) -> int:
    """FLOPs of one rank's forward passes."""
    columns = program.columns
    forward = (columns[:, OP] == Op.COMPUTE) & ((program.phase == Phase.FORWARD) | (program.phase == Phase.LOSS))
    forward &= np.isin(columns[:, SLOT], _MODEL_KERNELS)
    return int((columns[forward, AMOUNT].astype(float) * weight[forward]).sum())


_MODEL_KERNELS = (Kernel.GEMM, Kernel.GROUPED_GEMM, Kernel.ATTENTION, Kernel.MAMBA_SCAN, Kernel.CONV)
