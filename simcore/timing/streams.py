"""Durations of the items that the streams of a device execute, for one program.

Input: a `Program` and the cost of its rows. Output: `RankStreams` for the timeline, with the program's
`ExecutionGraph`.

[Note: the host]
The host issues kernels and calls one after another, each takes some time, and a kernel does not start before it was
issued. The last kernel of an item ends when the device has run all of them, or when the host has issued one of them and
the device has run that one and all after it, whichever is latest: `host_tail` is the largest of the second kind,
counted from where the host stood before the item. While it works on its own memory it issues nothing. Where it needs a
number from the device (rows of each expert) it stops until the device is there; at a message too, where Megatron
overlaps none (core 0.16.1 `p2p_communication.py:395`: `torch.cuda.synchronize()` where batch_p2p_comm and
batch_p2p_sync).

[Note: a shared expert next to an all-to-all]
If a framework runs the shared expert on a separate stream (`KernelLibraries.beside_exchanges`), its kernels do not
depend on an all-to-all, and their results are needed only for the sum. In a recording they are on the compute stream,
so the hidden time is subtracted from the all-to-alls of the same pass of the same layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM
from simcore.recording.exact_sums import fitting
from simcore.recording.kernel_shape import module_of
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Op, Stream
from simcore.timing.dependencies import ExecutionGraph, execution_graph

__all__ = ["RankStreams", "hidden_shares", "lengths_of", "tracks"]

_BESIDE = (int(Stream.ALL_GATHER), int(Stream.REDUCE), int(Stream.ALL_REDUCE))
"""Streams of collectives that run at the same time as kernels."""


@dataclass(frozen=True, eq=False)
class RankStreams:
    """Streams of one class of ranks (with the same program): an execution graph with durations in ns.

    `skeleton`: that graph. `item_ns`: kernels of each item, slowed by collectives beside them; `call_ns`: each call, by
    its number; `clock`: sum of kernel ns, not slowed, up to and with each row of the program. `host_ns`: host time of
    each item; `host_tail`: earliest time, from where the host stood before the item, at which its kernels can end as
    the host issues them. `stops`: the host waits where a row says so; `stops_at_messages`: it also waits at each
    message between stages ([Note: the host]). `in_line_ns`: of each call, what it takes more in line with kernels than
    alone; None for nothing.
    """

    skeleton: ExecutionGraph
    item_ns: tuple[int, ...]
    call_ns: tuple[int, ...]
    clock: IntArray
    host_ns: tuple[int, ...]
    host_tail: tuple[int, ...]
    stops: bool
    stops_at_messages: bool = False
    in_line_ns: IntArray | None = None

    @property
    def item_clock(self) -> IntArray:
        """Sum of kernel ns, without any waiting, until the end of each item."""
        return np.asarray(self.clock[np.minimum(self.skeleton.item_rows, len(self.clock) - 1)])


def hidden_shares(program: Program, kernel_ns: IntArray, call_ns: Callable[[int, int], int],
                  contention: float) -> NDArray[np.float64]:
    """Share, 0 to 1, of each all-to-all's time that kernels on another stream hide; 0 for other rows.

    One entry for each distinct row of the program (equal rows are stored once); all-to-alls of one pass of a layer have
    one share. `kernel_ns`: ns of each distinct row; `call_ns(comm, payload)`: ns of a call. The shorter of the two
    sums, kernels and calls, is hidden, less `contention`, the share by which kernels next to a collective take longer.
    """
    rows = program.distinct
    exchanges = np.array([collective == "all_to_all" for collective, _, _ in program.tables.comms], dtype=np.bool_)
    is_call = (rows[:, OP] == Op.COLLECTIVE) & (rows[:, STREAM] == Stream.COMPUTE)
    at = np.flatnonzero(is_call)
    at = at[exchanges[rows[at, SLOT]]]
    tiles = np.repeat(np.arange(len(program.tiles) + 1), [*(len(t.rows) for t in program.tiles),
                                                         len(program.outline.loose)])
    is_shared = (rows[:, OP] == Op.COMPUTE) & (module_of(rows[:, STREAM]) == Module.SHARED_EXPERTS)
    is_shared &= rows[:, SLOT] != Kernel.COPY  # those are of pages
    shared = np.bincount(tiles[is_shared], weights=kernel_ns[is_shared], minlength=len(program.tiles) + 1)
    lengths = np.array([call_ns(*pair) for pair in rows[at][:, [SLOT, AMOUNT]].tolist()], dtype=np.float64)
    exchanged = np.bincount(tiles[at], weights=lengths, minlength=len(program.tiles) + 1)
    hidden = np.minimum(shared, exchanged) / np.maximum(exchanged, 1.0) * (1.0 - contention)
    shares = np.zeros(len(rows))
    shares[at] = hidden[tiles[at]]
    return shares


def tracks(program: Program, kernel_ns: IntArray, host_ns: IntArray, call_ns: Callable[[int, int], int],
           contention: float, *, stops: bool, stops_at_messages: bool = False,
           hidden: NDArray[np.float64] | None = None, added_ns: IntArray | None = None) -> RankStreams:
    """Streams of the class of ranks that runs `program`.

    `kernel_ns`, `host_ns`: ns of each row of the program, all microbatches in order; the former is 0 for rows that are
    no kernel; `call_ns(comm, payload)`: ns of a call of communicator `comm` (the program's index) with `payload` bytes.
    `contention`: share of the time beside a collective by which kernels take longer. `stops`, `stops_at_messages`: see
    `RankStreams`. `hidden`: share of each distinct row's call that kernels hide (`hidden_shares`), None for
    0; `added_ns`: what its call takes more in its place, None for 0. Raises OverflowError if sums pass 64 bits.
    """
    skeleton = execution_graph(program.outline)
    clock, at = np.cumsum(fitting(kernel_ns)), program.places[skeleton.call_rows]
    full = lengths_of(program, at, call_ns)
    shown = full if hidden is None else (full * (1.0 - hidden[at])).astype(np.int64)
    more = None if added_ns is None else added_ns[at]
    call_lengths = tuple((shown if more is None else shown + more).tolist())
    items = np.diff(clock[np.minimum(skeleton.item_rows, len(clock) - 1)], prepend=0)
    items += _slowed(skeleton, clock, call_lengths, [contention * (comm[0] != "copy") for comm in program.tables.comms])
    advance, tail = _hosted(skeleton.item_rows, clock, np.cumsum(fitting(host_ns)))
    return RankStreams(skeleton, tuple(items.tolist()), call_lengths, clock, tuple(advance.tolist()),
                       tuple(tail.tolist()), stops, stops_at_messages, more)


def lengths_of(program: Program, at: IntArray, call_ns: Callable[[int, int], int]) -> IntArray:
    """Ns of each of many calls. `at`: their distinct rows, most of them often; `call_ns(comm, payload)`: ns of one."""
    some = np.flatnonzero(np.bincount(at, minlength=len(program.distinct)))
    lengths = np.zeros(len(program.distinct), dtype=np.int64)
    lengths[some] = [call_ns(*pair) for pair in program.distinct[some][:, [SLOT, AMOUNT]].tolist()]
    found: IntArray = lengths[at]
    return found


def _slowed(skeleton: ExecutionGraph, clock: IntArray, call_ns: Sequence[int], shares: Sequence[float]) -> IntArray:
    """Additional ns of each item because calls run at the same time. `clock`: running kernel ns by row.

    A call runs next to the kernels from its earliest start (after its gate, or where it was issued) until an item waits
    for it; the shorter of the two counts. `shares`: slowdown by communication; copies take no multiprocessors.
    """
    beside = [call for stream, calls in skeleton.calls.items() if stream in _BESIDE for call in calls]
    late, numbers = np.zeros(len(skeleton.items), dtype=np.int64), np.array([call.number for call in beside])
    if beside:
        places = np.minimum([call.after + 1 for call in beside], len(late) - 1)
        (awaited, called), waits = skeleton.awaited, np.full(len(call_ns), len(clock) - 1)
        waits[called] = skeleton.item_rows[awaited]
        gates = np.array([call.gate for call in beside])
        starts = np.where(gates < 0, skeleton.call_rows[numbers], skeleton.item_rows[gates])
        kernels = clock[waits[numbers]] - clock[starts]
        lengths = np.minimum(np.array(call_ns, dtype=np.int64)[numbers], kernels)
        np.add.at(late, places, (lengths * np.array(shares)[[call.comm for call in beside]]).astype(np.int64))
    return late


def _hosted(item_rows: IntArray, clock: IntArray, host: IntArray) -> tuple[IntArray, IntArray]:
    """(host ns of each item, its tail). `clock`, `host`: running sums over all rows."""
    ends = np.minimum(item_rows, len(clock) - 1)
    starts = np.concatenate([[0], ends[:-1] + 1])
    host_ends = host[ends]
    host_starts = np.concatenate([[0], host_ends[:-1]])
    lead = host - np.concatenate([[0], clock[:-1]])  # time of issue, less the device time of the kernels before it
    filled = ends >= starts
    highest = np.zeros(len(ends), dtype=np.int64)
    if filled.any():
        highest[filled] = np.maximum.reduceat(lead, starts[filled])
    tail = np.where(filled, highest + clock[ends] - host_starts, 0)
    return host_ends - host_starts, tail
