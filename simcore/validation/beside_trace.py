"""A trace of torch's profiler next to the simulated step: its time, and kernels by kind.

[Note: the same quantity]
A trace is of one rank; the simulated parts are of the ranks that end last. Names of kernels tell few kinds apart:
products, attention, the scan with its convolution, the optimizer; all else is one kind, and so are the classes that the
engine has for it. A profiler slows the host down, so a step that the host bounds takes longer in a trace than without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.results.report import Report
from simcore.results.time import StepTime
from simcore.validation.kernel_trace import COMMUNICATION, OTHER, Trace
from simcore.validation.side_by_side import Beside, SideBySide, beside

__all__ = ["beside_trace"]

_KINDS: Final = {
    "gemm": "matrix products", "grouped_gemm": "matrix products", "attention": "attention",
    "attention_flash2": "attention", "attention_triton": "attention", "attention_efficient": "attention",
    "mamba_scan": "scan and convolution", "conv": "scan and convolution", "optimizer": "optimizer"}
"""Kinds of a trace by class of kernel; the other classes are `OTHER`."""


def beside_trace(name: str, trace: Trace, report: Report) -> SideBySide:
    """Comparison of a trace with a report that has a step's time and its kernels.

    `name`: of the file. NotYet for a report without one.
    """
    time = report.time
    if time is None or report.phases:
        raise NotYet(Problem(report.name, "not yet: a trace beside a workload that has no training step alone"))
    waited = sum(time.parts.get(part, 0.0) for part in ("host", "bubble"))
    quantities = (
        beside("step", "seconds", trace.step_s, time.step_s, _of_steps(trace)),
        beside("device busy", "seconds", trace.busy_s, time.step_s - waited),
        beside("collectives", "seconds", trace.collectives_s, sum(call.alone_s for call in time.communication)),
        beside("collectives without a kernel beside", "seconds", trace.exposed_s, time.exposed_communication_s),
        *_kinds(trace, time))
    return SideBySide(measured=name, source="trace", scenario=report.name, ranks=time.ranks or ("0",),
                      verdict=report.verdict or "", quantities=quantities, notes=tuple(_notes(trace, report)))


def _of_steps(trace: Trace) -> str:
    return f"median of {trace.num_steps} profiled steps" if trace.num_steps > 1 else "one profiled step"


def _kinds(trace: Trace, time: StepTime) -> Iterator[Beside]:
    if trace.ours:
        return
    simulated: dict[str, float] = defaultdict(float)
    for row in time.kernels:
        simulated[_KINDS.get(row.kernel, OTHER)] += row.forward_s + row.backward_s + row.optimizer_s
    for kind in dict.fromkeys((*_KINDS.values(), OTHER)):
        measured = trace.kinds.get(kind, 0.0)
        if kind != COMMUNICATION and (measured or simulated[kind]):
            yield beside(f"kernels: {kind}", "seconds", measured, simulated[kind])


def _notes(trace: Trace, report: Report) -> Iterator[str]:
    if trace.ours:
        yield "rankscope wrote this trace: simulated stands beside simulated"
    else:
        yield f"{trace.num_kernels:,} kernels and copies on {trace.device or 'a device'}; kinds are told by their names"
    ranks = report.time.ranks if report.time else ()
    if trace.rank is not None and ranks:
        yield f"the trace is of rank {trace.rank}; simulated parts are of ranks {', '.join(ranks)}, which end last"
