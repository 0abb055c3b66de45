"""Traffic of one step of one rank: number of calls and bytes of a program's collectives.

A program has a few microbatches (`schedule.lowered_microbatches`); the steady ones stand for all omitted ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase, StepTemplate
from simcore.program.program import Program
from simcore.program.row_cache import held
from simcore.recording.exact_sums import countable
from simcore.results.report import TrafficRow
from simcore.timing.routes import Route, Routes

__all__ = ["Group", "groups", "traffic"]


class Group(NamedTuple):
    """Collective on a mesh axis (of a copy its direction) in groups of `group_size` ranks."""

    collective: str
    axis: str
    group_size: int


def groups(program: Program, routes: Routes) -> tuple[Group, ...]:
    """Collectives and axes of the rows of `traffic`, sorted, each once."""
    comms = list(program.tables.comms)
    named = {comms[number][:2]: None for number in program.outline.comms}
    return tuple(Group(*name, routes.of(*name).group_size) for name in sorted(named) if routes.of(*name).leaves)


def traffic(program: Program, routes: Routes, ranks: IntArray, steady: range, repeats: int) -> tuple[TrafficRow, ...]:
    """Rows of the report's traffic: calls and bytes of one rank in one whole step, sorted.

    Of messages those sent are counted. One row for each collective, mesh axis, phase and dtype, in this order; () if
    nothing leaves the rank. `ranks`: numbers of the ranks that run `program`; bytes per link are the mean over them.
    `steady`: indices of the program's microbatches that happen `repeats` times each, all others once.
    """
    counted = _counted(program.outline, steady, repeats)
    if not counted.keys:
        return ()
    comms = list(program.tables.comms)
    ways = [routes.of(kind, axis) for kind, axis, _ in comms]
    crossings = {(kind, axis): routes.crossing(kind, axis, ranks) for kind, axis in {comm[:2]: None for comm in comms}}
    shares = np.array([crossings[comm[:2]] for comm in comms])[counted.comms]
    sizes = program.payloads()[counted.numbers]
    wires = np.rint(sizes * shares[:, 0]).astype(np.int64)  # each call rounded, halves to even
    away = np.rint(sizes * shares[:, 1]).astype(np.int64)
    sums = (np.add.reduceat(countable(each, counted.times) * counted.times, counted.starts).tolist()
            for each in (np.ones_like(sizes), sizes, wires, away, 1 - _measured(ways, counted.comms, sizes)))
    rows = [_row(comms[key // len(Phase)], ways[key // len(Phase)], key % len(Phase), *sums_of_row)
            for key, *sums_of_row in zip(counted.keys, *sums, strict=True) if ways[key // len(Phase)].leaves]
    return tuple(sorted(rows, key=lambda r: (r.collective, r.axis, r.phase, r.dtype)))


def _measured(ways: Sequence[Route], comms: IntArray, sizes: IntArray) -> NDArray[np.bool_]:
    """True for each call whose time was measured."""
    bounds = np.array([(way.measured.start, way.measured.stop) for way in ways])[comms]
    measured: NDArray[np.bool_] = (sizes >= bounds[:, 0]) & (sizes < bounds[:, 1])
    return measured


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """Equal calls of a step, counted: index in `Program.payloads`, number of times, communication.

    `keys`: communication row and phase; calls of one key are adjacent, from `starts` on.
    """

    keys: tuple[int, ...]
    starts: IntArray
    numbers: IntArray
    times: IntArray
    comms: IntArray


@held()
def _counted(outline: StepTemplate, steady: range, repeats: int) -> _Counted:
    """Calls of a step template, counted; the loss is part of forward."""
    loose, tiles = outline.calls, outline.tile_calls
    numbers = np.concatenate([np.arange(len(loose)), len(loose) + tiles[:, 1]])
    comm_of, phase, microbatch = np.concatenate([loose, tiles])[:, [0, 2, 3]].T
    often = np.where((microbatch >= steady.start) & (microbatch < steady.stop), repeats, 1)
    cells = numbers * len(Phase) + np.where(phase == Phase.LOSS, int(Phase.FORWARD), phase)
    counts = np.bincount(cells, weights=often)
    of_number = np.zeros(len(counts) // len(Phase) + 1, dtype=np.int64)
    of_number[numbers] = comm_of
    numbers, phase = np.divmod(np.flatnonzero(counts), len(Phase))
    keys = of_number[numbers] * len(Phase) + phase
    order = np.argsort(keys, kind="stable")
    keys, numbers = keys[order], numbers[order]
    times = counts[numbers * len(Phase) + phase[order]].astype(np.int64)
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return _Counted(tuple(keys[starts].tolist()), starts, numbers, times, keys // len(Phase))


def _row(comm: tuple[str, str, str], way: Route, phase: int, calls: int, payload: int, wire: int, away: int,
         unmeasured: int) -> TrafficRow:
    collective, axis, dtype = comm
    near = 0 if way.link.name == "host" else wire - away
    return TrafficRow(collective=collective, axis=axis, group_size=way.group_size, phase=Phase(phase).name.lower(),
                      dtype=dtype, calls=calls, payload_bytes=payload, wire_bytes=wire, nvlink_bytes=near,
                      network_bytes=away, algorithm=way.algorithm, timing="model" if unmeasured else "measured")
