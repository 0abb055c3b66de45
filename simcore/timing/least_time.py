"""Least times of one rank's program, each a lower bound of the timeline, without running it.

[Note: least times]
The compute stream runs kernels, each at least as long as alone on an idle device, and the collectives that layers call
themselves, one after the other. The host issues all rows one after the other, and the last kernel ends after it was
issued. Collectives on one link, beside kernels, run one after the other too. All three sums are at most the time at
which the rank ends (`timeline._Machine`).
"""

from __future__ import annotations

import numpy as np

from simcore.placement.framework import Framework
from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM
from simcore.recording.tape import Op, Stream
from simcore.timing.routes import HOST_WAYS, Routes
from simcore.timing.step import alone_ns, exposed_ns, host_ns, kernels_of

__all__ = ["LeastTimes"]

_COLLECTIVE, _COPY = int(Op.COLLECTIVE), int(Op.COPY)
_COMPUTE, _SEND, _RECEIVE = int(Stream.COMPUTE), int(Stream.SEND), int(Stream.RECEIVE)


class LeastTimes:
    """Least times of one rank's program, in ns, of each simulated microbatch [microbatch].

    All-to-alls that kernels of a shared expert may hide are left out.
    """

    def __init__(self, program: Program, routes: Routes, framework: Framework) -> None:
        self._program, self._routes, rows = program, routes, program.distinct
        self._kernels = kernels_of(program, routes.topology, framework)
        self._issue = host_ns(program, self._kernels, routes, framework)
        op, stream = rows[:, OP], rows[:, STREAM]
        self._calls = np.flatnonzero(((op == _COLLECTIVE) | (op == _COPY)) & (stream != _SEND) & (stream != _RECEIVE))
        self._lengths = _lengths(program, self._calls, routes, framework)
        self._in_line = stream[self._calls] == _COMPUTE
        self._are_hidden = bool(framework.libraries.shared_beside)

    def busy(self) -> IntArray:
        """Least ns of the compute stream."""
        ns = np.zeros(len(self._issue), dtype=np.int64)
        ns[self._kernels.rows] = self._kernels.ns
        if not self._are_hidden:
            ns[self._calls[self._in_line]] = self._lengths[self._in_line]
        return self._program.outline.by_microbatch(ns)

    def issue(self) -> IntArray:
        """Ns of the host."""
        return self._program.outline.by_microbatch(self._issue)

    def kernel_issue(self) -> IntArray:
        """Ns of the host for kernels alone."""
        ns = np.zeros(len(self._issue), dtype=np.int64)
        ns[self._kernels.rows] = self._issue[self._kernels.rows]
        return self._program.outline.by_microbatch(ns)

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


def _lengths(program: Program, calls: IntArray, routes: Routes, framework: Framework) -> IntArray:
    """Ns of each call, by distinct row."""
    call_ns = exposed_ns(program, alone_ns(program, routes), routes, framework)
    return np.array([call_ns(*pair) for pair in program.distinct[calls][:, [SLOT, AMOUNT]].tolist()], dtype=np.int64)
