"""A step as traces of PyTorch's profiler (Kineto), one file per rank, for HolisticTraceAnalysis and similar tools.

[Note: what HolisticTraceAnalysis requires]
HolisticTraceAnalysis 0.5.0 (`hta/common/trace_file.py`, `trace.py`, `utils/utils.py`): the rank is the first match of
a regular expression for `"rank":`, at least one space, and digits. An event with a `stream` is a kernel:
communication if its name matches `^nccl.*Kernel`, a copy if it begins with `Memcpy`, else computation (unless `Sync`
is in the name). The iteration of a kernel is that of the launch with the same `correlation`; the last iteration is
dropped unless it is the only one. Times that are not integers are rounded inwards to microseconds, unless
HTA_DISABLE_NS_ROUNDING is 1. The names of a collective's arguments are those of torch 2.13
(`torch/csrc/profiler/util.h`), those of copies Kineto's.

[Note: times of launches]
When the host issues a kernel is known only where the device waits for the host: the kernel starts as soon as it is
launched. Every other launch is put one microsecond after the launch before it, or where its kernel starts if that is
earlier: the host runs ahead. Launches are at whole microseconds and take no time, so that rounding does not move them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from simcore.results.report import Report
from simcore.units import DTYPE_BYTES
from viz.exports.slices import THREADS, Process, Slice, in_us, left_out, plain, processes

__all__ = ["kineto_traces", "overlap"]

_Event = dict[str, Any]
_COMMUNICATION: Final = ("in_layers", "all_gather", "reduce", "all_reduce", "send", "receive")
_LANES: Final = ("compute", *_COMMUNICATION, "copy")
_FIRST_STREAM: Final = 7
"""Number of the default stream in traces that Kineto makes of PyTorch; the other streams follow it."""
_FIRST_CALL: Final = 1 << 20
"""First correlation number. HolisticTraceAnalysis stores correlations in the smallest integer type that holds them and
later replaces them by row numbers, which pandas 3 refuses where these need a larger type; so they begin as high as in a
real trace."""
_HOST: Final = {"pid": 1_000_000_000, "tid": 1_000_000_000}
"""Process and thread of the host: numbers above every rank."""
_CALLS: Final = {
    "all_gather": ("AllGather", "_allgather_base"), "reduce_scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all_reduce": ("AllReduce", "allreduce"), "all_to_all": ("SendRecv", "all_to_allv"),
    "send_recv": ("SendRecv", "send"), "broadcast": ("Broadcast", "broadcast"), "reduce": ("Reduce", "reduce"),
    "gather": ("SendRecv", "gather"),
}
"""For each collective, the word in the name of NCCL's kernel, and PyTorch's name of the call."""
_DTYPES: Final = {"fp32": "Float", "bf16": "BFloat16", "fp16": "Half", "fp8": "Float8_e4m3fn", "int8": "Char",
                  "uint8": "Byte", "int32": "Int", "int64": "Long"}
_COPIES: Final = {"to_host": "Memcpy DtoH (Device -> Pinned)", "to_device": "Memcpy HtoD (Pinned -> Device)"}


def kineto_traces(report: Report, ranks: Sequence[int] = ()) -> tuple[dict[str, str], Sequence[str]]:
    """Returns (JSON texts of the traces by file name, a line for each thing that they leave out).

    `ranks`: numbers of the ranks to write; empty: the first rank of each class (at most 128 classes). Ranks without a
    timeline have no file.
    """
    omissions = left_out(report, ranks)
    world = sum(rank.num_ranks for rank in report.ranks)
    return {f"rank{process.number}.pt.trace.json": _text(report, process, world, omissions)
            for process in processes(report, ranks)}, omissions


def overlap(threads: Mapping[str, Sequence[Slice]]) -> float:
    """Returns the share of a rank's communication time in which it computes too, 0 to 1.

    0 without communication. `threads`: slices by the thread's name. The definition of HolisticTraceAnalysis
    (`hta/analyzers/communication_analysis.py`, get_comm_comp_overlap).
    """
    computing = _union(threads.get("compute", ()))
    calling = _union(piece for lane in _COMMUNICATION for piece in threads.get(lane, ()) if not _is_copy(piece))
    return _common(computing, calling) / max(1, sum(end - start for start, end in calling))


def _common(intervals: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> int:
    """Returns the length of the intersection in ns; the intervals of each side are in order and do not overlap."""
    total = at = 0
    for start, end in intervals:
        while at < len(others) and others[at][1] <= start:
            at += 1
        for first, last in islice(others, at, None):
            if first >= end:
                break
            total += min(end, last) - max(start, first)
    return total


def _is_copy(piece: Slice) -> bool:
    """Says whether a slice is a copy, on whichever stream it is."""
    return piece.span is not None and piece.span.kind == "copy"


def _union(pieces: Iterable[Slice]) -> list[tuple[int, int]]:
    union: list[tuple[int, int]] = []
    for start, end in sorted((piece.start, piece.end) for piece in pieces):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _text(report: Report, process: Process, world: int, omissions: Sequence[str]) -> str:
    device = process.number % report.detail.ranks_per_node if report.detail else 0
    about = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": plain(str(report.scenario.get("topology", ""))),
                              "totalGlobalMem": report.capacity_bytes}],
        "distributedInfo": {"backend": "nccl", "rank": process.number, "world_size": world},
        "rankscope": {"scenario": plain(report.name), "stands_for": ", ".join(process.rank.ranks),
                      "end_s": process.threads["step"][0].end / 1e9, "overlap": overlap(process.threads),
                      "left_out": "; ".join(omissions)},
        "displayTimeUnit": "ms", "baseTimeNanoseconds": 0,
    }
    events = ",\n".join(json.dumps(in_us(event)) for event in _events(report, process, device))
    return f'{json.dumps(about)[:-1]}, "traceEvents": [\n{events}\n]}}\n'


def _events(report: Report, process: Process, device: int) -> Iterator[_Event]:
    yield from _names(process, device)
    step, *passes = process.threads["step"]
    yield {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0"} | _HOST | {
        "ts": step.start, "dur": step.end - step.start, "args": {"External id": 0, "Ev Idx": 0}}
    for part in passes:
        yield {"ph": "X", "cat": "gpu_user_annotation", "name": part.name, "pid": device, "tid": _FIRST_STREAM,
               "ts": part.start, "dur": part.end - part.start, "args": {"External id": 0}}
    late = {piece.end for piece in process.threads.get("waits", ()) if piece.span and piece.span.kind == "host"}
    launched = -1000
    for number, (piece, lane) in enumerate(_in_order(process), _FIRST_CALL):
        begins = piece.start // 1000 * 1000
        launched = begins if piece.start in late else min(launched + 1000, begins)
        name = "cudaMemcpyAsync" if _is_copy(piece) else "cudaLaunchKernel"
        yield {"ph": "X", "cat": "cuda_runtime", "name": name} | _HOST | {
            "ts": launched, "dur": 0, "args": {"correlation": number, "External id": number}}
        yield _kernel(report, process, piece, lane) | {
            "pid": device, "tid": _stream(lane), "ts": piece.start, "dur": piece.end - piece.start,
            "args": {"External id": number, "correlation": number, "device": device, "stream": _stream(lane)}
            | _args(process, piece, lane)}


def _names(process: Process, device: int) -> Iterator[_Event]:
    yield {"ph": "M", "name": "process_name", "pid": device, "tid": 0, "args": {"name": process.name}}
    yield {"ph": "M", "name": "process_name"} | _HOST | {"args": {"name": "host"}}
    for lane in _LANES:
        if lane in process.threads:
            where = {"ph": "M", "pid": device, "tid": _stream(lane)}
            yield where | {"name": "thread_name", "args": {"name": f"stream {_stream(lane)}: {THREADS[lane]}"}}


def _in_order(process: Process) -> list[tuple[Slice, str]]:
    pieces = [(piece, lane) for lane in _LANES for piece in process.threads.get(lane, ())]
    return sorted(pieces, key=lambda pair: (pair[0].start, _stream(pair[1])))


def _stream(lane: str) -> int:
    return _FIRST_STREAM + _LANES.index(lane)


def _kernel(report: Report, process: Process, piece: Slice, lane: str) -> _Event:
    """Returns the category and the name of a kernel or a copy."""
    span = piece.span
    assert span is not None
    if _is_copy(piece):
        return {"ph": "X", "cat": "gpu_memcpy", "name": _COPIES[span.label]}
    if lane != "compute":
        return {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{_CALLS[span.kind][0]}"}
    kinds = report.detail.layers if report.detail else {}
    return {"ph": "X", "cat": "kernel", "name": plain(f"{span.kind} {kinds.get(span.label, '')}".rstrip())}


def _args(process: Process, piece: Slice, lane: str) -> _Event:
    span = piece.span
    assert span is not None
    if lane == "compute":
        return {"layer": plain(span.label), "microbatch": span.microbatch}
    if _is_copy(piece):
        return {"bytes": span.bytes, "memory bandwidth (GB/s)": span.bytes / (piece.end - piece.start)}
    size = next((row.group_size for row in process.rank.traffic
                 if row.axis == span.label and row.collective == span.kind), 1)
    sent, received = _elements(span.kind, span.bytes // DTYPE_BYTES.get(span.dtype, 1), size)
    name = "recv" if lane == "receive" else _CALLS[span.kind][1]
    return {"Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "Group size": size,
            "dtype": _DTYPES.get(span.dtype, span.dtype), "Process Group Name": span.label,
            "Process Group Description": span.label, "layer": plain(span.layer), "microbatch": span.microbatch}


def _elements(collective: str, payload: int, size: int) -> tuple[int, int]:
    """Returns the elements that go in and come out on a rank; the payload is that of all ranks (see `TrafficRow`)."""
    if collective == "all_gather":
        return payload // size, payload
    return payload, payload // size if collective == "reduce_scatter" else payload
