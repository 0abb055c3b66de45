"""Step time: the programs of all classes are costed, run on the timeline, and extrapolated to all microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcore.hardware.topology import Topology
from simcore.placement.fold import RankClass
from simcore.placement.framework import Framework
from simcore.placement.libraries import FULL_ITERATION
from simcore.placement.mesh import IntArray, Mesh
from simcore.program.outline import Phase, StepTemplate
from simcore.program.program import Program
from simcore.program.row_cache import held
from simcore.program.tile import AMOUNT, OP, SLOT, LayerRows
from simcore.recording.exact_sums import countable
from simcore.recording.tape import Kernel, Op
from simcore.timing.breakdown import Breakdown, Kernels, breakdown
from simcore.timing.dependencies import ComputeItem
from simcore.timing.host_launch import launch_ns
from simcore.timing.kernel import HostRates, exposed_share, host_rates
from simcore.timing.program_kernels import alone_ns, in_line_ns, shown_kernels
from simcore.timing.routes import HOST_WAYS, Routes
from simcore.timing.streams import RankStreams, tracks
from simcore.timing.timeline import ClassTimes, Communicators, run

__all__ = ["StepLength", "StepTiming", "exposed_ns", "forward_flops", "forward_ns", "host_ns", "once_ns", "time_step",
           "with_reasons"]

_LAUNCH_S = 5e-6
"""Seconds of an operator that no Python calls, as the source of `host.operator` says (`topologies/efficiency`)."""


@dataclass(frozen=True, eq=False)
class StepLength:
    """Length of one step of a job. A class: ranks with the same program.

    `step_ns`: of the whole step, all microbatches, of which `once_ns` is host time once a step. `worst`: index of the
    class of the ranks that end last. `steady`: the microbatches around the repeated ones take the same time on every
    rank (or nothing is extrapolated). `forward_flops`: FLOPs of all ranks' forward passes of the whole step, experts
    loaded alike. `often`: how often each simulated microbatch happens. For each class, of the simulated microbatches
    alone: `row_ns`, when its compute stream had done each row of its program; `times`, ends of its items and calls;
    `tracks`, its streams. `kernels`: of its program; `alone`: ns of its calls without contention. `wiring`:
    communicators of all classes.
    """

    step_ns: int
    once_ns: int
    worst: int
    steady: bool
    forward_flops: int
    often: IntArray
    row_ns: tuple[IntArray, ...]
    times: tuple[ClassTimes, ...]
    tracks: tuple[RankStreams, ...]
    kernels: tuple[Kernels, ...]
    alone: tuple[Callable[[int, int], int], ...]
    wiring: Communicators


@dataclass(frozen=True, eq=False)
class StepTiming(StepLength):
    """Times of one step of a job, in ns, with their reasons.

    `phase_ns`: parts "forward", "backward" and "optimizer" of the step on a rank that ends last; `spending`: their
    breakdown.
    """

    phase_ns: dict[str, int]
    spending: Breakdown


def time_step(programs: Sequence[Program], classes: Sequence[RankClass], routes: Routes, framework: Framework,
              steady_ones: range, extra_microbatches: int) -> StepLength:
    """Length of one step: runs the programs, with a few microbatches each, and extrapolates the others.

    `classes`: for each program the class of ranks that runs it. `steady_ones`: indices of the programs' microbatches
    that stand for those left out; `extra_microbatches`: number of those left out, each as long as a steady one.
    """
    alone = tuple(alone_ns(program, routes) for program in programs)
    kernels, hidden = zip(*(shown_kernels(*each, routes, framework)
                            for each in zip(programs, alone, strict=True)), strict=True)
    compiled = [_track(*each, routes, framework) for each in zip(programs, kernels, alone, hidden, strict=True)]
    once = once_ns(routes.topology, framework, routes.mesh.size)
    wires = _Wires(programs, classes, routes)
    times = run(compiled, wires)
    first, group = steady_ones.start, len(steady_ones)
    repeats = extra_microbatches // group
    ahead = [_with_lead(*each, steady_ones, repeats) for each in zip(programs, compiled, times, strict=True)]
    if repeats and any(track is not before for track, before in zip(ahead, compiled, strict=True)):
        times = run(ahead, wires)
    rows = tuple(_row_ns(track, t, len(p.places)) for track, t, p in zip(compiled, times, programs, strict=True))
    spent = [_spent(p, r) for p, r in zip(programs, rows, strict=True)] if repeats else []
    starts = [_backward_starts(p, r) for p, r in zip(programs, rows, strict=True)] if repeats else []
    hosts = [_host_by_microbatch(*each) for each in zip(programs, compiled, strict=True)] if repeats else []
    steady = not repeats or (_is_steady(starts, spent, hosts, steady_ones) and not any(
        _catches_up(*each, steady_ones) for each in zip(programs, compiled, times, hosts, strict=True)))
    weight = np.ones(len(_first_backward_rows(programs[0].outline)), dtype=np.int64)
    weight[first:steady_ones.stop] += repeats
    worst = max(range(len(times)), key=lambda i: (times[i].end, -i))
    period = int(spent[worst][first:steady_ones.stop].sum()) if repeats else 0  # also of parts, where none is steady
    return StepLength(max(t.end for t in times) + period * repeats + once, once, worst, steady,
                      forward_flops(programs, classes, weight), weight, rows, tuple(times), tuple(compiled), kernels,
                      alone, wires)


def forward_flops(programs: Sequence[Program], classes: Sequence[RankClass], often: IntArray) -> int:
    """FLOPs of all ranks' forward passes of a step, whose microbatch i happens `often[i]` times."""
    return sum(_forward_flops(p, often) * c.num_ranks for p, c in zip(programs, classes, strict=True))


def once_ns(topology: Topology, framework: Framework, num_ranks: int) -> int:
    """Host time in ns once a step, whatever is in it; `num_ranks`: ranks of the job.

    A list of a tensor for each rank takes the host an operator (zeros) and the launch of a copy for each of them.
    """
    host, libraries = topology.efficiency.host, framework.libraries
    calls, lists = libraries.logged.calls, libraries.logged.lists
    logged = calls * host.collective.si + lists * num_ranks * (host.operator.si + _LAUNCH_S) if num_ranks > 1 else 0.0
    each = host.step.si + libraries.counts_zeros * host.statistics.si
    return int((logged + each * libraries.module_calls) * 1e9)


def with_reasons(length: StepLength, program: Program) -> StepTiming:
    """Times of a step with their reasons on the ranks that end last. `program`: that of these ranks."""
    worst, once = length.worst, length.once_ns
    spending = breakdown(program, length.tracks[worst], length.times[worst], length.often, length.kernels[worst],
                         length.alone[worst], once)
    spent = _spent(program, length.row_ns[worst])
    phases = _phases(length.often @ countable(spent, length.often[:, None]), once)
    known = {one.name: getattr(length, one.name) for one in fields(StepLength)}
    return StepTiming(**known, phase_ns=phases, spending=spending)


def forward_ns(programs: Sequence[Program], classes: Sequence[RankClass], routes: Routes, framework: Framework) -> int:
    """Time in ns until the last rank has run its program, for programs without backward passes.

    `classes`: for each program the class of ranks that runs it. Nothing is extrapolated to other microbatches.
    """
    compiled = []
    for program in programs:
        alone = alone_ns(program, routes)
        kernels, hidden = shown_kernels(program, alone, routes, framework)
        compiled.append(_track(program, kernels, alone, hidden, routes, framework))
    return max(times.end for times in run(compiled, _Wires(programs, classes, routes)))


def exposed_ns(program: Program, alone: Callable[[int, int], int], routes: Routes, framework: Framework,
             ) -> Callable[[int, int], int]:
    """Function that gives ns of a call without the share that kernels hide, by its communicator and payload."""
    overlap, overlapped = routes.topology.efficiency.overlap, framework.libraries.overlapped
    shares = [exposed_share(overlap, axis, overlapped) for _, axis, _ in program.tables.comms]
    return cache(lambda comm, payload: int(alone(comm, payload) * shares[comm]))


def _is_steady(starts: Sequence[IntArray], spent: Sequence[IntArray], hosts: Sequence[IntArray],
               steady: range) -> bool:
    """True if the steady microbatches take as long as their neighbours: on all ranks, and in each phase.

    The host must not need more time to issue them: else its lead shrinks, and later microbatches wait for it.

    A period must also equal the time of their own passes: if a pass still waits for the microbatch before it, repeating
    it would not add up to the step. The step's last microbatch reduces gradients, so phases are not compared with it.
    """
    first, group = steady.start, len(steady)
    if first < group or steady.stop + group > len(starts[0]):
        return False
    windows = [s[first - group:steady.stop + group] for s in starts]
    periods = {int(p) for window in windows for p in window[group:] - window[:-group]}
    periods |= {int(s[first:steady.stop].sum()) for s in spent}
    is_last = steady.stop + group == len(starts[0])
    following = slice(steady.stop, steady.stop + group)
    if any(host[first:steady.stop].sum() > min(periods) for host in hosts):
        return False
    return len(periods) == 1 and (is_last or all((s[first:steady.stop] == s[following]).all() for s in spent))


def _track(program: Program, kernels: Kernels, alone: Callable[[int, int], int],
           hidden: NDArray[np.float64] | None, routes: Routes, framework: Framework) -> RankStreams:
    rows, efficiency, libraries = program.distinct, routes.topology.efficiency, framework.libraries
    ns = np.zeros(len(rows), dtype=np.int64)
    ns[kernels.rows] = kernels.ns
    host = host_ns(program, kernels, routes, framework)
    call_ns = exposed_ns(program, alone, routes, framework)
    contention = efficiency.overlap.contention.si
    in_python = FULL_ITERATION not in libraries.graphs
    return tracks(program, ns[program.places], host[program.places], call_ns, contention, stops=in_python,
                  stops_at_messages=in_python and libraries.waits_for_messages, hidden=hidden,
                  added_ns=in_line_ns(program, efficiency, libraries))


def host_ns(program: Program, kernels: Kernels, routes: Routes, framework: Framework) -> IntArray:
    """Host time in ns of the issue of each distinct row. `kernels`: those of the program."""
    rows = program.distinct
    has_work = (rows[:, OP] == Op.HOST).any()
    updates = host_rates(routes.topology, routes.mesh.size) if has_work else HostRates(math.inf, math.inf, math.inf)
    rings = [number for number, (kind, axis, _) in enumerate(program.tables.comms)
             if kind == "send_recv" and axis != "pp"]
    return launch_ns(routes.topology.efficiency.host, rows, kernels.rows, kernels.kinds, framework.libraries, updates,
                     rings)


class _Wires:
    """Implements `timeline.Communicators` with the indices that each class's program gives communicators."""

    def __init__(self, programs: Sequence[Program], classes: Sequence[RankClass], routes: Routes) -> None:
        self.mesh, self.classes, self.topology = routes.mesh, tuple(classes), routes.topology
        self.comms = [list(program.tables.comms) for program in programs]
        self.many = len({c.stage for c in classes}) < len(classes)
        self.links: dict[str, str] = {}

    def meets(self, number: int, comm: int) -> tuple[int, ...]:
        _, axis, _ = self.comms[number][comm]
        alone = not self.many or axis in HOST_WAYS  # with one class a stage its ranks meet only each other
        return (number,) if alone else _met(self.classes, self.mesh, number, axis)

    def name(self, number: int, comm: int) -> str:
        """Collective, axis and dtype, as text."""
        return " ".join(self.comms[number][comm])

    def link(self, number: int, comm: int) -> str:
        _, name, _ = self.comms[number][comm]
        if name not in self.links and name not in HOST_WAYS:  # copies run in both directions at once
            axis = self.mesh.axis(name)
            self.links[name] = self.topology.link(axis.size, axis.stride, self.mesh.size).name
        return self.links.get(name, name)

    def lane(self, number: int) -> int:
        return self.classes[number].representative % self.mesh.stage_size


@lru_cache(maxsize=1024)
def _met(classes: tuple[RankClass, ...], mesh: Mesh, number: int, axis: str) -> tuple[int, ...]:
    """Classes in a class's communicator on an axis."""
    own_class = classes[number]
    group = mesh.group(own_class.representative, axis)
    ranks = np.arange(group.start, group.stop, group.step, dtype=np.int64)
    places = ranks % mesh.stage_size % own_class.period
    return tuple(np.flatnonzero(np.bincount(_class_at(classes, own_class.stage)[places])).tolist())


@lru_cache(maxsize=16)
def _class_at(classes: tuple[RankClass, ...], stage: int) -> IntArray:
    """Index of the class at each position of a period of a stage."""
    at = np.zeros(next(c.period for c in classes if c.stage == stage), dtype=np.int64)
    for number, rank_class in enumerate(classes):
        if rank_class.stage == stage:
            at[rank_class.offsets] = number
    return at


def _backward_starts(program: Program, rows: IntArray) -> IntArray:
    """Time at which each microbatch's backward pass begins, in ns."""
    starts: IntArray = rows[_first_backward_rows(program.outline)]
    return starts


@held()
def _first_backward_rows(outline: StepTemplate) -> IntArray:
    at = np.flatnonzero((outline.phase == Phase.BACKWARD) | (outline.phase == Phase.RECOMPUTE))
    _, first = np.unique(outline.microbatch[at], return_index=True)
    rows: IntArray = at[first]
    return rows


def _spent(program: Program, rows: IntArray) -> IntArray:
    """Compute-stream time by [microbatch, phase]; time before the first microbatch counts as the first's."""
    bins, num_bins = _bins(program.outline)
    sums = np.bincount(bins, weights=np.diff(rows, prepend=0), minlength=num_bins)
    return sums.astype(np.int64).reshape(-1, len(Phase))


def _host_by_microbatch(program: Program, track: RankStreams) -> IntArray:
    """Host time in ns by microbatch."""
    rows, outline = np.minimum(track.skeleton.item_rows, len(program.places) - 1), program.outline
    sums = np.bincount(outline.microbatch[rows], weights=track.host_ns, minlength=int(outline.microbatch.max()) + 1)
    return sums.astype(np.int64)


def _with_lead(program: Program, track: RankStreams, times: ClassTimes, steady: range, repeats: int) -> RankStreams:
    """Streams with the lead that the host gains in `repeats` more microbatches like the steady ones.

    If the host issues a microbatch in less time than it takes, and nothing in it makes the host stop, each further
    microbatch adds the difference to its lead. This equals a last steady microbatch issued in that much less time.
    """
    if not repeats:
        return track
    microbatch = program.outline.microbatch[np.minimum(track.skeleton.item_rows, len(program.places) - 1)]
    inside = np.flatnonzero((microbatch >= steady.start) & (microbatch < steady.stop))
    at = int(inside[-1])
    items = track.skeleton.items
    if not any(times.idle_at[at + 1:]) or any(_stops(track, items[n]) for n in inside.tolist()):
        return track
    busy, ends = np.array(track.host_ns, dtype=np.int64), np.array(times.item_ends, dtype=np.int64)
    before = np.flatnonzero(microbatch < steady.start)
    period = int(ends[at] - ends[before[-1]]) if len(before) else 0
    gain = (period - int(busy[inside].sum())) * repeats
    if gain <= 0:
        return track
    busy[at] -= gain
    return replace(track, host_ns=tuple(busy.tolist()))


def _catches_up(program: Program, track: RankStreams, times: ClassTimes, host: IntArray, steady: range) -> bool:
    """True if kernels of steady microbatches wait for a host that gains lead in them: later ones wait less for it."""
    microbatch = program.outline.microbatch[np.minimum(track.skeleton.item_rows, len(program.places) - 1)]
    inside = np.flatnonzero((microbatch >= steady.start) & (microbatch < steady.stop))
    before = np.flatnonzero(microbatch < steady.start)
    if not len(inside) or not len(before) or any(_stops(track, track.skeleton.items[n]) for n in inside.tolist()):
        return False
    period = times.item_ends[int(inside[-1])] - times.item_ends[int(before[-1])]
    return period > int(host[steady.start:steady.stop].sum()) and any(times.idle_at[n] for n in inside.tolist())


def _stops(track: RankStreams, item: ComputeItem) -> bool:
    return (track.stops and item.stops_host) or (track.stops_at_messages and item.message >= 0)


@held()
def _bins(outline: StepTemplate) -> tuple[IntArray, int]:
    """(position of each row in a table of [microbatch, phase], size of that table)."""
    num_microbatches = int(outline.microbatch.max()) + 1
    return outline.microbatch * len(Phase) + outline.phase, num_microbatches * len(Phase)


def _row_ns(track: RankStreams, times: ClassTimes, num_rows: int) -> IntArray:
    """Time at which the compute stream reaches each row, in ns.

    Delays by the host and by contention are before an item's kernels; waiting for a call is after them.
    """
    clock = track.item_clock
    late = np.array(times.item_ends, dtype=np.int64) - clock
    behind = np.concatenate([[0], late[:-1]])
    running = late - np.array(times.waited_at, dtype=np.int64)
    rows_of = np.diff(track.skeleton.item_rows, prepend=-1).clip(0)  # rows up to and with each item's own
    item = np.repeat(np.arange(len(clock)), rows_of)[:num_rows]
    is_running = track.clock > np.concatenate([[0], clock[:-1]])[item]
    row_ns: IntArray = track.clock + np.where(is_running, running[item], behind[item])
    return row_ns


def _phases(spent: NDArray[Any], once: int) -> dict[str, int]:
    """Time by the three phases of a report; recompute counts as backward, the loss as forward.

    `once`: host time once a step, counted as the optimizer's.
    """
    groups = {"forward": (Phase.FORWARD, Phase.LOSS), "backward": (Phase.BACKWARD, Phase.RECOMPUTE),
              "optimizer": (Phase.OPTIMIZER,)}
    return {name: sum(spent[list(codes)].tolist()) + once * (name == "optimizer") for name, codes in groups.items()}


def _forward_flops(program: Program, weight: IntArray) -> int:
    """FLOPs of one rank's forward passes that have a backward, all in tiles.

    Without those of a reference model inside the loss, and of KTO's pass ahead of the policy's, which ends with what
    the loss makes of it. `weight`: number of repetitions of each microbatch.
    """
    tile, _, _, layer, phase, microbatch = program.outline.columns
    losses, rows = np.flatnonzero(phase == Phase.LOSS), np.arange(len(phase))
    begun, ahead = np.full(len(weight), len(phase)), np.full(len(weight), -1)
    np.minimum.at(begun, microbatch[losses], losses)
    passed = np.flatnonzero((phase == Phase.FORWARD) & (tile >= 0) & (layer == layer[losses].max(initial=-1)))
    passed = passed[passed < begun[microbatch[passed]]]
    np.maximum.at(ahead, microbatch[passed], passed)
    before = (rows > ahead[microbatch]) & (rows < begun[microbatch])
    forward = ((phase == Phase.FORWARD) & before) | (phase == Phase.LOSS)
    times = np.bincount(tile[forward] + 1, weights=weight[microbatch[forward]], minlength=len(program.tiles) + 1)
    return sum(_model_flops(laid) * int(count) for laid, count in zip(program.tiles, times[1:].tolist(), strict=True)
               if count)


@lru_cache(maxsize=4096)
def _model_flops(tile: LayerRows) -> int:
    """FLOPs of the kernels that the model's forward itself requires."""
    rows = tile.rows[tile.rows[:, OP] == int(Op.COMPUTE)]
    return sum(rows[_IS_MODELS[rows[:, SLOT]], AMOUNT].tolist())


_MODEL_KERNELS = (Kernel.GEMM, Kernel.GROUPED_GEMM, Kernel.ATTENTION, Kernel.MAMBA_SCAN, Kernel.CONV, Kernel.FP8_GEMM,
                  Kernel.FP8_GROUPED_GEMM, Kernel.FP8_ATTENTION, Kernel.FP4_GEMM, Kernel.FP4_GROUPED_GEMM)
_IS_MODELS = np.array([kernel in _MODEL_KERNELS for kernel in Kernel])
