"""A step as a trace in Chrome's format, which Perfetto opens (ui.perfetto.dev).

Classes of ranks are processes, under the number of their first rank; streams are threads. An arrow goes from what sends
to what receives, and in a collective from the rank that came last to those that waited for it.

[Note: what readers do with the format]
The format is Google's "Trace Event Format": `X` is a slice, `M` names a process or thread, `C` is a counter of a
process, `s` and `f` are the ends of an arrow; times are microseconds. Perfetto reads more strictly than the document
says (google/perfetto, `src/trace_processor/importers/json`): older versions stop at an outer key that they do not know
(04c583cd, json_trace_tokenizer.cc) and name threads by their number alone (0ba84ac3, json_trace_parser_impl.cc), so no
two processes share one, and none is the number of a process. An arrow's end binds to the slice around it (`bp: e`),
which stands before it in the file. Of two slices of a thread that overlap, one is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from simcore.results.report import MemorySeries, Report
from viz.exports.slices import THREADS, Process, Slice, left_out, plain, processes

__all__ = ["chrome_trace"]

_Event = dict[str, Any]
_End = tuple[_Event, Slice]
"""Process and thread of one end of a call, and the call there."""
_ORDER: Final = "XCsf"
"""Of events at one moment."""


def chrome_trace(report: Report, ranks: Sequence[int] = ()) -> tuple[str, Sequence[str]]:
    """The file's text, and a line for each thing that it leaves out. `ranks`: instead of the first of each class."""
    told, shown = left_out(report, ranks), processes(report, ranks)
    places = _places(shown)
    named = [event for number, process in enumerate(shown) for event in _names(number, process, places)]
    timed = [event for process in shown for event in (*_slices(process, places), *_counters(process))]
    timed += _arrows(shown, places)
    timed.sort(key=lambda event: (event["ts"], _ORDER.index(event["ph"])))
    about = json.dumps({"scenario": plain(report.name), **_seconds(report), "left_out": told})
    events = ",\n".join(json.dumps(_in_us(event)) for event in (*named, *timed))
    return f'{{"displayTimeUnit": "ns", "otherData": {about}, "traceEvents": [\n{events}\n]}}\n', told


def _seconds(report: Report) -> dict[str, float]:
    return {} if report.time is None else {"step_s": report.time.step_s}


def _in_us(event: _Event) -> _Event:
    """Times are ns until here."""
    return event | {key: event[key] / 1000 for key in ("ts", "dur") if key in event}


def _places(shown: Sequence[Process]) -> dict[tuple[int, str], _Event]:
    """Where the threads of each process are: `pid` and `tid`."""
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
    """What is known of a slice; of the whole step, where its ranks stand."""
    span = piece.span
    if span is None:
        return {axis: str(at) for axis, at in process.rank.coordinates.items()} if piece.name == "step" else {}
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
    for at, time_s in enumerate(memory.time_s):
        held = {name: values[at] for name, values in zip(memory.categories, memory.values, strict=True)}
        where = {"ph": "C", "pid": number, "ts": round(time_s * 1e9)}
        yield where | {"name": "allocated", "args": {"bytes": sum(held.values())}}
        yield where | {"name": "allocated by category", "args": held}


def _arrows(shown: Sequence[Process], places: dict[tuple[int, str], _Event]) -> Iterator[_Event]:
    """A pair of events for each; from the end that started last. Classes meet: one rank of each has arrows."""
    ends: dict[str, list[_End]] = {}
    for process in {process.rank.ranks: process for process in reversed(shown)}.values():
        for name, thread, piece in _with_other_ends(process):
            ends.setdefault(name, []).append((places[process.number, thread], piece))
    number = 0
    for found in ends.values():
        found.sort(key=_order)
        for where, _ in found[1:]:
            number += 1
            source, piece = found[0]
            for event in ({"ph": "s"} | source, {"ph": "f", "bp": "e"} | where):
                yield event | {"id": number, "name": _kind(piece), "cat": "meets", "ts": max(
                    one.start for _, one in found)}


def _order(end: _End) -> tuple[bool, int, int]:
    """The sender first, then who came last, then the lowest rank."""
    where, piece = end
    return piece.span is not None and piece.span.lane != "send", -piece.start, where["pid"]


def _kind(piece: Slice) -> str:
    return piece.span.kind if piece.span else ""


def _with_other_ends(process: Process) -> Iterator[tuple[str, str, Slice]]:
    """Calls that have other ends: their name, the thread, and what is there."""
    for thread, pieces in process.threads.items():
        for piece in pieces:
            if piece.span is not None and piece.span.meets:
                yield piece.span.meets, thread, piece
