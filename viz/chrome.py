"""A step as a trace in Chrome's format: Perfetto (ui.perfetto.dev) and chrome://tracing open it.

Classes of ranks are processes, under the number of their first rank; streams are threads. Times are microseconds with
three decimals, so whole nanoseconds.

[Note: the format]
"Trace Event Format" (Google, the document that chrome://tracing links): `X` is a slice, `M` names a process or a
thread, `C` is a counter of a process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from simcore.report import MemorySeries, Report
from viz.slices import THREADS, Process, Slice, left_out, processes

__all__ = ["chrome_trace"]

_Event = dict[str, Any]


def chrome_trace(report: Report) -> tuple[str, Sequence[str]]:
    """The file's text, and a line for each thing that it leaves out."""
    told, shown = left_out(report), processes(report)
    named = [event for process in shown for event in _names(process)]
    timed = [event for process in shown for event in (*_slices(process), *_counters(process))]
    timed.sort(key=lambda event: event["ts"])
    step = {} if report.time is None else {"step_s": report.time.step_s}
    about = json.dumps({"scenario": plain(report.name), **step, "left_out": told})
    events = ",\n".join(json.dumps(_in_us(event)) for event in (*named, *timed))
    return f'{{"displayTimeUnit": "ns", "otherData": {about}, "traceEvents": [\n{events}\n]}}\n', told


def plain(text: str) -> str:
    """Without control characters and the like: each becomes its escape in Python's spelling."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _in_us(event: _Event) -> _Event:
    """Times are ns until here."""
    return event | {key: event[key] / 1000 for key in ("ts", "dur") if key in event}


def _names(process: Process) -> Iterator[_Event]:
    ranks = process.rank
    words = f"rank {process.number}" + (f", stands for {', '.join(ranks.ranks)}" if ranks.num_ranks > 1 else "")
    yield {"ph": "M", "pid": process.number, "tid": 0, "name": "process_name", "args": {"name": words}}
    for thread in process.threads:
        where = {"ph": "M", "pid": process.number, "tid": _tid(thread)}
        yield where | {"name": "thread_name", "args": {"name": thread.replace("_", " ")}}
        yield where | {"name": "thread_sort_index", "args": {"sort_index": _tid(thread)}}


def _tid(thread: str) -> int:
    return THREADS.index(thread) + 1


def _slices(process: Process) -> Iterator[_Event]:
    for thread, pieces in process.threads.items():
        for piece in pieces:
            yield {"ph": "X", "pid": process.number, "tid": _tid(thread), "ts": piece.start,
                   "dur": piece.end - piece.start, "name": plain(_name(piece)), "cat": thread, "args": _args(piece)}


def _name(piece: Slice) -> str:
    span = piece.span
    return f"{span.kind} {span.label}".strip().replace("_", " ")


def _args(piece: Slice) -> _Event:
    span = piece.span
    found = {"microbatch": span.microbatch, "count": span.count, "exposed_s": span.exposed_s}
    return {key: value for key, value in found.items() if value or key == "microbatch"}


def _counters(process: Process) -> Iterator[_Event]:
    if process.rank.memory is not None:
        yield from _memory(process.number, process.rank.memory)


def _memory(number: int, memory: MemorySeries) -> Iterator[_Event]:
    for at, time_s in enumerate(memory.time_s):
        held = {name: values[at] for name, values in zip(memory.categories, memory.values, strict=True)}
        yield {"ph": "C", "pid": number, "name": "allocated bytes", "ts": round(time_s * 1e9), "args": held}
