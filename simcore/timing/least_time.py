"""Least times of one rank's program, each a lower bound of the timeline, without running it.

[Note: least times]
The compute stream runs kernels, each at least as long as alone on an idle device, and the collectives that layers call
themselves, one after the other. The host issues all rows one after the other, and the last kernel ends after it was
issued. Collectives on one link, beside kernels, run one after the other too. All three sums are at most the time at
which the rank ends (`timeline._Machine`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simcore.placement.framework import Framework
from simcore.placement.mesh import IntArray
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM
from simcore.recording.tape import Op, Stream
from simcore.timing.routes import Routes
from simcore.timing.step import alone_ns, exposed_ns, host_ns, kernels_of, link_of

__all__ = ["LeastTimes", "least_times"]

_COMPUTE: Final = int(Stream.COMPUTE)
_MESSAGES: Final = (int(Stream.SEND), int(Stream.RECEIVE))


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """Least times of a program, in ns, of each simulated microbatch [microbatch].

    `busy`: of the compute stream; `issue`: of the host; `kernel_issue`: of the host for kernels alone; `on_links`: of
    the link that is taken longest by collectives beside kernels.
    """

    busy: IntArray
    issue: IntArray
    kernel_issue: IntArray
    on_links: IntArray


def least_times(program: Program, routes: Routes, framework: Framework) -> LeastTimes:
    """Least times of a program. All-to-alls that kernels of a shared expert may hide are left out."""
    outline, rows = program.outline, program.distinct
    kernels = kernels_of(program, routes.topology, framework)
    busy, issue = np.zeros(len(rows), dtype=np.int64), host_ns(program, kernels, routes, framework)
    busy[kernels.rows] = kernels.ns
    kernel_issue = np.zeros_like(issue)
    kernel_issue[kernels.rows] = issue[kernels.rows]
    calls = np.flatnonzero(((rows[:, OP] == Op.COLLECTIVE) | (rows[:, OP] == Op.COPY))
                           & ~np.isin(rows[:, STREAM], _MESSAGES))
    lengths = _lengths(program, calls, routes, framework)
    in_line = rows[calls, STREAM] == _COMPUTE
    if not framework.libraries.shared_beside:
        busy[calls[in_line]] = lengths[in_line]
    beside = _by_link(program, calls[~in_line], lengths[~in_line], routes)
    return LeastTimes(outline.by_microbatch(busy), outline.by_microbatch(issue), outline.by_microbatch(kernel_issue),
                      max(beside, key=lambda sums: int(sums.sum()), default=outline.by_microbatch(busy * 0)))


def _lengths(program: Program, calls: IntArray, routes: Routes, framework: Framework) -> IntArray:
    """Ns of each call, by distinct row."""
    call_ns = exposed_ns(program, alone_ns(program, routes), routes, framework)
    return np.array([call_ns(*pair) for pair in program.distinct[calls][:, [SLOT, AMOUNT]].tolist()], dtype=np.int64)


def _by_link(program: Program, calls: IntArray, lengths: IntArray, routes: Routes) -> list[IntArray]:
    """Sums of the calls on each link, by microbatch."""
    links: dict[str, list[int]] = {}
    for number, (_, axis, _) in enumerate(program.tables.comms):
        links.setdefault(link_of(routes.mesh, routes.topology, axis), []).append(number)
    comms, found = program.distinct[calls, SLOT], []
    for numbers in links.values():
        of = np.isin(comms, numbers)
        if of.any():
            ns = np.zeros(len(program.distinct), dtype=np.int64)
            ns[calls[of]] = lengths[of]
            found.append(program.outline.by_microbatch(ns))
    return found
