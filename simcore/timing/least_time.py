"""Least times of one rank's program, each a lower bound of the timeline, without running it.

[Note: least times]
The compute stream runs kernels, each at least as long as alone on an idle device, and the collectives that layers call
themselves, one after the other. The host issues all rows one after the other, and the last kernel ends after it was
issued. Collectives on one link, beside kernels, run one after the other too. All three sums are at most the time at
which the rank ends (`timeline._Machine`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simcore.placement.framework import Framework
from simcore.placement.libraries import FULL_ITERATION
from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.stage_borders import BORDER_HANDLES
from simcore.program.tile import AMOUNT, AUX, OP, SLOT, STREAM
from simcore.recording.rows import HOST_DRAINS, HOST_STOPS
from simcore.recording.tape import Op, Stream
from simcore.timing.exchanges import shown
from simcore.timing.program_kernels import alone_ns, shown_kernels
from simcore.timing.routes import HOST_WAYS, Routes
from simcore.timing.step import exposed_ns, host_ns

__all__ = ["LeastTimes"]

_COLLECTIVE, _COPY, _WAIT = int(Op.COLLECTIVE), int(Op.COPY), int(Op.WAIT)
_COMPUTE, _SEND, _RECEIVE = int(Stream.COMPUTE), int(Stream.SEND), int(Stream.RECEIVE)


class LeastTimes:
    """Least times of one rank's program, in ns, of each simulated microbatch [microbatch]."""

    def __init__(self, program: Program, routes: Routes, framework: Framework) -> None:
        self._program, self._routes, rows = program, routes, program.distinct
        alone = alone_ns(program, routes)
        self._kernels, hidden = shown_kernels(program, alone, routes, framework)
        self._issue = host_ns(program, self._kernels, routes, framework)
        op, stream = rows[:, OP], rows[:, STREAM]
        self._calls = np.flatnonzero(((op == _COLLECTIVE) | (op == _COPY)) & (stream != _SEND) & (stream != _RECEIVE))
        self._busy = np.zeros(len(rows), dtype=np.int64)
        self._busy[self._kernels.rows] = self._kernels.ns
        self._lengths = _lengths(program, self._calls, alone, hidden, routes, framework)
        self._in_python = FULL_ITERATION not in framework.libraries.graphs
        self._in_line = stream[self._calls] == _COMPUTE
        self._busy[self._calls[self._in_line]] = self._lengths[self._in_line]

    def busy(self) -> IntArray:
        """Least ns of the compute stream."""
        return self._program.outline.by_microbatch(self._busy)

    def issue(self) -> IntArray:
        """Ns of the host."""
        return self._program.outline.by_microbatch(self._issue)

    def own_issue(self) -> IntArray:
        """Ns of the host for kernels and calls in line, which are in an item of their own pass (`dependencies.py`).

        Other rows may be in an item that ends in the next microbatch.
        """
        ns = np.zeros(len(self._issue), dtype=np.int64)
        own = np.concatenate([self._kernels.rows, self._calls[self._in_line]])
        ns[own] = self._issue[own]
        return self._program.outline.by_microbatch(ns)

    def around(self, steady: range) -> int:
        """Least ns of the host until the last kernel of the microbatches `steady`, and of the kernels after them.

        Whatever lead the host has gained by then: it is counted from there on (`step.py`, _with_lead).
        """
        outline, num_rows = self._program.outline, len(self._issue)
        inside = np.flatnonzero((outline.columns[5] >= steady.start) & (outline.columns[5] < steady.stop))
        kernels = outline.by_segment(np.bincount(self._kernels.rows, minlength=num_rows))
        last = inside[kernels[inside] > 0][-1:]
        before, after = outline.by_segment(self._issue), outline.by_segment(self._busy)
        return sum(int(before[:at].sum() + after[inside[-1] + 1:].sum()) for at in last.tolist())

    def stops(self, steady: range) -> bool:
        """True if the host waits for the device somewhere in the microbatches `steady`."""
        rows, microbatch = self._program.distinct, self._program.outline.columns[5]
        waits = (rows[:, OP] == _WAIT) & np.isin(rows[:, AUX], (HOST_STOPS, HOST_DRAINS))
        sums = self._program.outline.by_segment(waits.astype(np.int64))
        inside = (microbatch >= steady.start) & (microbatch < steady.stop)
        return self._in_python and bool(sums[inside].any())

    def across(self) -> tuple[int, int, int]:
        """Least ns of the compute stream in three parts of a pipeline stage's step.

        Until it sends its first hidden states, from those that it receives, if it does. From there until it sends its
        last gradient, or to the end. From the last gradient that it receives on, until it sends its own, or to the end.
        """
        rows, busy = self._program.distinct, self._program.outline.by_segment(self._busy)
        sends = (rows[:, OP] == _COLLECTIVE) & (rows[:, STREAM] == _SEND)
        waits, (up, down) = rows[:, OP] == _WAIT, (rows[:, AUX] == handle for handle in BORDER_HANDLES)
        begin = next(iter(self._segments(waits & up)), 0)
        sent = next(iter(self._segments(sends & up)), begin)
        received = next(reversed(self._segments(waits & down)), len(busy))
        end = next(reversed(self._segments(sends & down)), len(busy))
        return int(busy[begin:sent].sum()), int(busy[begin:end].sum()), int(busy[received:end].sum())

    def _segments(self, rows: NDArray[np.bool_]) -> list[int]:
        """Indices of the segments with any of the distinct rows for which `rows` is True."""
        found: list[int] = np.flatnonzero(self._program.outline.by_segment(rows.astype(np.int64))).tolist()
        return found

    def on_links(self) -> int:
        """Least ns of all simulated microbatches on the link that is taken longest by collectives beside kernels."""
        beside = ~self._in_line
        calls, lengths = self._calls[beside], self._lengths[beside]
        links = [axis if axis in HOST_WAYS else self._routes.of(collective, axis).link.name
                 for collective, axis, _ in self._program.tables.comms]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(links))}
        link = np.array([numbers[name] for name in links], dtype=np.int64)[self._program.distinct[calls, SLOT]]
        most = 0
        for number in np.flatnonzero(np.bincount(link)).tolist():
            ns = np.zeros(len(self._issue), dtype=np.int64)
            ns[calls[link == number]] = lengths[link == number]
            most = max(most, int(self._program.outline.by_microbatch(ns).sum()))
        return most


def _lengths(program: Program, calls: IntArray, alone: Callable[[int, int], int], hidden: NDArray[np.float64] | None,
             routes: Routes, framework: Framework) -> IntArray:
    """Ns of each call, as the timeline has it, without what kernels hide. `hidden`: share of each distinct row."""
    call_ns = exposed_ns(program, alone, routes, framework)
    full = np.array([call_ns(*pair) for pair in program.distinct[calls][:, [SLOT, AMOUNT]].tolist()], dtype=np.int64)
    return shown(full, hidden, calls)
