"""A step as a trace in Chrome's format, which Perfetto opens (ui.perfetto.dev).

A class of ranks is a process with the number of its first rank; a stream is a thread. An arrow goes from a send to its
receive, and in a collective from the rank that started last to the ranks that waited for it.

[Note: how Perfetto reads the format]
The format is Google's "Trace Event Format": `X` is a slice, `M` names a process or thread, `C` is a counter of a
process, `s` and `f` are the ends of an arrow; times are microseconds. Perfetto is stricter than the document
(google/perfetto, `src/trace_processor/importers/json`): older versions stop at an unknown top-level key (04c583cd,
json_trace_tokenizer.cc) and identify a thread only by its number (0ba84ac3, json_trace_parser_impl.cc), so no two
processes share a thread number, and no thread has the number of a process. An arrow's end binds to the slice that
encloses it (`bp: e`), which comes before it in the file. Of two overlapping slices of a thread one is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from simcore.results.report import MemorySeries, Report
from viz.exports.slices import THREADS, Process, Slice, in_us, left_out, plain, processes

__all__ = ["chrome_trace"]

_Event = dict[str, Any]
_End = tuple[_Event, Slice]
"""One end of a communication call: its process and thread, and its slice."""
_ORDER: Final = "XCsf"
"""Order of the kinds of events with the same time."""


def chrome_trace(report: Report, ranks: Sequence[int] = ()) -> tuple[str, Sequence[str]]:
    """Returns (JSON text of the trace, a line for each thing that it leaves out).

    `ranks`: numbers of the ranks to show; empty: the first rank of each class (at most 128 classes). Ranks without a
    timeline are not in it.
    """
    omissions, shown = left_out(report, ranks), processes(report, ranks)
    places = _places(shown)
    named = [event for number, process in enumerate(shown) for event in _names(number, process, places)]
    timed = [event for process in shown for event in (*_slices(process, places), *_counters(process))]
    timed += _arrows(shown, places)
    timed.sort(key=lambda event: (event["ts"], _ORDER.index(event["ph"])))
    about = json.dumps({"scenario": plain(report.name), **_seconds(report), "left_out": omissions})
    events = ",\n".join(json.dumps(in_us(event)) for event in (*named, *timed))
    return f'{{"displayTimeUnit": "ns", "otherData": {about}, "traceEvents": [\n{events}\n]}}\n', omissions


def _seconds(report: Report) -> dict[str, float]:
    return {} if report.time is None else {"step_s": report.time.step_s}


def _places(shown: Sequence[Process]) -> dict[tuple[int, str], _Event]:
    """Returns `pid` and `tid` of each thread, by the process's number and the thread's name."""
    first = max((process.number for process in shown), default=0) + 1
    names = [(process.number, thread) for process in shown for thread in THREADS]
    return {name: {"pid": name[0], "tid": first + n} for n, name in enumerate(names)}


def _names(number: int, process: Process, places: dict[tuple[int, str], _Event]) -> Iterator[_Event]:
    where = {"ph": "M", "pid": process.number, "tid": places[process.number, "step"]["tid"]}
    yield where | {"name": "process_name", "args": {"name": process.name}}
    yield where | {"name": "process_sort_index", "args": {"sort_index": number}}
    for thread in process.threads:
        where = {"ph": "M"} | places[process.number, thread]
        yield where | {"name": "thread_name", "args": {"name": THREADS[thread]}}
        yield where | {"name": "thread_sort_index", "args": {"sort_index": where["tid"]}}


def _slices(process: Process, places: dict[tuple[int, str], _Event]) -> Iterator[_Event]:
    for thread, pieces in process.threads.items():
        for piece in pieces:
            yield {"ph": "X"} | places[process.number, thread] | {
                "ts": piece.start, "dur": piece.end - piece.start, "name": piece.name, "cat": thread,
                "args": _args(process, piece)}


def _args(process: Process, piece: Slice) -> _Event:
    """Returns what is known of a slice; for the whole step, the coordinates of the ranks."""
    span = piece.span
    if span is None:
        coordinates = process.rank.coordinates if piece.name == "step" else {}
        return {axis: str(coordinate) for axis, coordinate in coordinates.items()}
    if span.lane == "compute":
        return {"layer": plain(span.label), "microbatch": span.microbatch} | _joined(span.count)
    return {"layer": plain(span.layer), "microbatch": span.microbatch, "collective": span.kind, "axis": span.label,
            "dtype": span.dtype, "bytes": span.bytes, "exposed_s": span.exposed_s} | _joined(span.count)


def _joined(count: int) -> _Event:
    return {"drawn_together": count} if count > 1 else {}


def _counters(process: Process) -> Iterator[_Event]:
    if process.rank.memory is not None:
        yield from _memory(process.number, process.rank.memory)


def _memory(number: int, memory: MemorySeries) -> Iterator[_Event]:
    for sample, time_s in enumerate(memory.time_s):
        sizes = {name: values[sample] for name, values in zip(memory.categories, memory.values, strict=True)}
        where = {"ph": "C", "pid": number, "ts": round(time_s * 1e9)}
        yield where | {"name": "allocated", "args": {"bytes": sum(sizes.values())}}
        yield where | {"name": "allocated by category", "args": sizes}


def _arrows(shown: Sequence[Process], places: dict[tuple[int, str], _Event]) -> Iterator[_Event]:
    """Yields a pair of events for each arrow; it starts at the end of the call that started last.

    Calls connect classes of ranks, so only one rank of each class has arrows.
    """
    ends: dict[str, list[_End]] = {}
    for process in {process.rank.ranks: process for process in reversed(shown)}.values():
        for name, thread, piece in _with_other_ends(process):
            ends.setdefault(name, []).append((places[process.number, thread], piece))
    number = 0
    for call in ends.values():
        call.sort(key=_order)
        for where, _ in call[1:]:
            number += 1
            source, piece = call[0]
            for event in ({"ph": "s"} | source, {"ph": "f", "bp": "e"} | where):
                yield event | {"id": number, "name": _kind(piece), "cat": "meets", "ts": max(
                    other.start for _, other in call)}


def _order(end: _End) -> tuple[bool, int, int]:
    """Sorts the sender first, then the latest start, then the lowest rank."""
    where, piece = end
    return piece.span is not None and piece.span.lane != "send", -piece.start, where["pid"]


def _kind(piece: Slice) -> str:
    return piece.span.kind if piece.span else ""


def _with_other_ends(process: Process) -> Iterator[tuple[str, str, Slice]]:
    """Yields (name, thread, slice) of calls that have another end."""
    for thread, pieces in process.threads.items():
        for piece in pieces:
            if piece.span is not None and piece.span.meets:
                yield piece.span.meets, thread, piece
