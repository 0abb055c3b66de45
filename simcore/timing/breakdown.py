"""Breakdown of a step's time on one rank into parts that add up to the step, in integer nanoseconds.

Input: a program that was run on the timeline, and the number of repetitions of each microbatch. Output: a `Breakdown`
of the rank that ends last, because waiting on other ranks does not lengthen the step.

[Note: parts of a step]
The device computes, or it waits; `PARTS` lists the reasons. Waiting for ranks that are late is communication, also
where their layers take longer; waiting for a stage with more work is bubble, as is waiting due to the order of passes.
What of a collective is exposed and what is hidden: `waits.py`.

[Note: what bounds kernels]
A kernel takes the sum of the times of its arithmetic and of its memory traffic (see `kernel.py`), so each has its share
of a step. The rest are kernels so small that they take the shortest time of any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase, StepTemplate
from simcore.program.program import Program
from simcore.program.row_cache import held
from simcore.program.tile import SLOT
from simcore.recording.exact_sums import countable, dot
from simcore.recording.tape import Stream
from simcore.timing.kernel import DTYPES, KERNELS
from simcore.timing.streams import RankStreams, lengths_of
from simcore.timing.timeline import ClassTimes
from simcore.timing.waits import Waits

__all__ = ["PARTS", "Breakdown", "Kernels", "Sent", "Work", "breakdown"]

PARTS: Final = {
    "forward": "kernels of forward passes and the loss, as long as they take alone",
    "backward": "kernels of backward passes, recomputation included",
    "optimizer": "kernels of the optimizer's step",
    "contention": "by how much kernels take longer beside collectives",
    "communication": "waiting for collectives, for ranks that join them late, for messages while they travel, and for "
                     "copies from and to the host",
    "bubble": "all other waiting for a neighbouring stage",
    "host": "waiting for the host to issue, and to update what lies on it; what the host does once a step",
}
_COMPUTE: Final = tuple(PARTS)[:3]
_PART_OF = np.array([{Phase.BACKWARD: 1, Phase.RECOMPUTE: 1, Phase.OPTIMIZER: 2}.get(phase, 0) for phase in Phase])
_SEND = int(Stream.SEND)


class Kernels(NamedTuple):
    """Kernels of one rank's program: one entry for each distinct kernel row; arrays in one order.

    `rows`: index among the program's distinct rows; `kinds`: index in `kernel.KERNELS`; `dtypes`: index in
    `kernel.DTYPES`; `flops`, `bytes_moved`: of one run of the kernel; `ns`: its time on an idle device, of which
    `compute_ns` is for arithmetic and `memory_ns` for memory traffic, not rounded; the rest of `ns` is due to the
    shortest time of a kernel.
    """

    rows: IntArray
    kinds: IntArray
    dtypes: IntArray
    ns: IntArray
    flops: IntArray
    bytes_moved: IntArray
    compute_ns: NDArray[np.float64]
    memory_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """All kernels of one class and format on one rank in one step.

    `kernel`, `dtype`: entries of `kernel.KERNELS` and `kernel.DTYPES`. `ns`: time on an idle device in forward, in
    backward and in the optimizer, in this order; `compute_ns`, `memory_ns`: parts of their sum for arithmetic and for
    memory traffic. `flops`, `bytes_moved`: sums over the step.
    """

    kernel: str
    dtype: str
    ns: tuple[int, ...]
    flops: int
    bytes_moved: int
    compute_ns: float
    memory_ns: float


@dataclass(frozen=True, slots=True)
class Sent:
    """All calls of one collective on one mesh axis in a step of one rank.

    `calls`: their number, of messages only those received. `alone_ns`: their time without contention; `exposed_ns`:
    time that kernels waited for them; `hidden_ns`: the sum, over calls, of their time beside kernels.
    """

    collective: str
    axis: str
    calls: int
    alone_ns: int
    exposed_ns: int
    hidden_ns: int


@dataclass(frozen=True, eq=False)
class Breakdown:
    """Time of one step of one rank (the one that ends last) by reason, in ns.

    `parts`: ns by name, see `PARTS`, which add up to the step; `work`: kernels by class and format; `sent`: calls by
    collective and axis.
    """

    parts: dict[str, int]
    work: tuple[Work, ...]
    sent: tuple[Sent, ...]


def breakdown(program: Program, track: RankStreams, times: ClassTimes, weight: IntArray, kernels: Kernels,
              alone_ns: Callable[[int, int], int], once: int) -> Breakdown:
    """Breakdown of a whole step on one rank of the class that runs `program`.

    `track`: the class's streams; `times`: what the timeline gave for them; `weight`: how often each microbatch of the
    program happens in the step; `kernels`: those of the program; `alone_ns(comm, payload)`: ns of a call without
    contention; `once`: host ns spent once a step.
    """
    work = _work(program, weight, kernels)
    rows = np.minimum(track.skeleton.item_rows, len(program.places) - 1)
    of_item = weight[program.microbatch[rows]]
    calls = weight[program.microbatch[track.skeleton.call_rows]] if len(track.call_ns) else weight[:0]
    waits = Waits(track, times, calls)
    clock = track.item_clock
    late = np.array(track.item_ns, dtype=np.int64) - np.diff(clock, prepend=0)
    parts = {part: sum(kernels_of_class.ns[number] for kernels_of_class in work) for number,
             part in enumerate(_COMPUTE)}
    parts["contention"] = dot(late, of_item)
    parts["communication"] = dot(waits.exposed, of_item) + waits.trailing
    parts["bubble"] = dot(waits.waited - waits.exposed, of_item)
    parts["host"] = dot(np.array(times.idle_at, dtype=np.int64), of_item) + once
    return Breakdown(parts, work, _sent(program, track, weight, waits, alone_ns))


def _work(program: Program, weight: IntArray, kernels: Kernels) -> tuple[Work, ...]:
    """Kernels by class and format. Each distinct row is counted by part, as often as its microbatches happen."""
    classes = kernels.kinds * len(DTYPES) + kernels.dtypes
    order = np.argsort(classes, kind="stable")
    counts = _often(program.outline, weight.tobytes(), len(program.distinct))[kernels.rows[order]]
    times = counts.sum(axis=1)
    ns, flops, moved = (countable(column[order], times) for column in kernels[3:6])
    columns = [ns, flops, moved, *(column[order] for column in kernels[6:])]
    numbers, starts = np.unique(classes[order], return_index=True)
    work = []
    for number, start, end in zip(numbers.tolist(), starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        ns, flops, moved, compute, memory = (column[start:end] for column in columns)
        of = times[start:end]
        if of.any():
            work.append(Work(KERNELS[number // len(DTYPES)], DTYPES[number % len(DTYPES)],
                             tuple((ns @ counts[start:end]).tolist()), int(flops @ of), int(moved @ of),
                             float(compute @ of), float(memory @ of)))
    return tuple(work)


@held()
def _often(outline: StepTemplate, weight: bytes, num_rows: int) -> IntArray:
    """Number of times that each of `num_rows` distinct rows runs in each part. `weight`: int64, by microbatch."""
    bins = outline.places * len(_COMPUTE) + _PART_OF[outline.phase]
    weights = np.frombuffer(weight, dtype=np.int64)[outline.microbatch]
    often = np.bincount(bins, weights=weights, minlength=num_rows * len(_COMPUTE))
    return often.astype(np.int64).reshape(num_rows, len(_COMPUTE))


def _sent(program: Program, track: RankStreams, weight: IntArray, waits: Waits,
          alone_ns: Callable[[int, int], int]) -> tuple[Sent, ...]:
    """Calls by collective and axis. Only the receiver of a message is counted: sending runs next to any computation."""
    call_rows = track.skeleton.call_rows
    at = program.places[call_rows]
    alone = lengths_of(program, at, alone_ns)
    if track.in_line_ns is not None:
        alone = alone + track.in_line_ns
    often = weight[program.microbatch[call_rows]].copy() if len(call_rows) else np.zeros(0, dtype=np.int64)
    often[[call.number for call in track.skeleton.calls.get(_SEND, ())]] = 0
    columns = alone, waits.of_call, waits.hidden(alone)
    return tuple(_kinds_of_calls(program, program.distinct[at, SLOT], often, columns))


def _kinds_of_calls(program: Program, comms: IntArray, often: IntArray, columns: Sequence[IntArray]) -> list[Sent]:
    sums: dict[tuple[str, str], list[int]] = {}
    for number, (collective, axis, _) in enumerate(program.tables.comms):
        of = comms == number
        totals = [int(often[of].sum()), *(dot(column[of], often[of]) for column in columns)]
        sums[collective, axis] = [sum(pair) for pair in zip(sums.get((collective, axis), [0] * 4), totals, strict=True)]
    return [Sent(collective, axis, *totals) for (collective, axis), totals in sorted(sums.items())
            if totals[1] or totals[2]]
