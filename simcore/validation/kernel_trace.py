"""Traces of torch's profiler (Kineto's JSON, plain or gzipped): steps, kernels and collectives of one rank.

[Note: what a trace has]
torch 2.13 `profiler/profiler.py`: each step of a scheduled profiler is an annotation `ProfilerStep#N` of the host.
Kineto (`libkineto/src/output_json.cpp`): events have microseconds; what runs on a device has the category `kernel`,
`gpu_memcpy` or `gpu_memset`, names of NCCL's kernels begin with `nccl`; `distributedInfo` has the rank.
Kernels of a step begin inside of it. A trace without steps is one step, from its first kernel to the end of its last.
"""

from __future__ import annotations

import json
import re
import statistics
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeGuard

from simcore.errors import InputError, Problem

__all__ = ["COMMUNICATION", "OTHER", "Trace", "is_trace", "read_trace"]

_MOST_BYTES: Final = 2**29
_GZIP: Final = b"\x1f\x8b"
_ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP: Final = re.compile(r"ProfilerStep#\d+")
COMMUNICATION: Final = "collectives"
OTHER: Final = "all other kernels"
_KINDS: Final = (
    (COMMUNICATION, re.compile(r"^nccl")),
    ("attention", re.compile(r"flash|fmha|sdpa|attention", re.IGNORECASE)),
    ("scan and convolution", re.compile(r"chunk_(scan|state|cumsum)|bmm_chunk|state_passing|conv1d", re.IGNORECASE)),
    ("optimizer", re.compile(r"adam|multi_tensor_apply(?!.*copy)", re.IGNORECASE)),  # FSDP2 copies by it too
    ("matrix products", re.compile(r"gemm|nvjet|cutlass|gemv|splitK", re.IGNORECASE)))
"""Kinds by words in the names of kernels; the first that is found. What torch's own operators launch is `OTHER`."""
_Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace, in seconds a step: medians over its steps. `rank`: None if it is not named.

    `step_s`: of the host's annotation; `busy_s`: in which at least one kernel or copy ran; `collectives_s`: in which a
    collective did, `exposed_s` the part of it without a kernel beside. `kinds`: sums over kernels by kind. `num_steps`,
    `num_kernels`: in the whole trace. `device`: name of the GPU; `ours`: written by rankscope.
    """

    rank: int | None
    step_s: float
    busy_s: float
    collectives_s: float
    exposed_s: float
    kinds: dict[str, float]
    num_steps: int
    num_kernels: int
    device: str
    ours: bool


def is_trace(content: bytes) -> bool:
    """Tells whether a file's content is gzipped, or JSON with events of a trace."""
    return content.startswith(_GZIP) or (content.lstrip()[:1] == b"{" and b'"traceEvents"' in content[:2**20])


def read_trace(content: bytes, where: str) -> Trace:
    """The trace of a file; InputError (`where`: its name) for other content, or one without kernels."""
    shape = _Shape(where)
    data = shape.parsed(_unpacked(content, shape))
    events = [event for event in data["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    kernels = [shape.interval(event) for event in events if event.get("cat") in _ON_DEVICE]
    if not kernels:
        shape.refuse("has no kernels: record with ProfilerActivity.CUDA")
    kernels.sort(key=lambda kernel: kernel[1])
    steps = sorted((start, end) for name, start, end in map(shape.interval, _annotations(events)) if _STEP.match(name))
    steps = steps or [(kernels[0][1], max(end for _, _, end in kernels))]
    read = [_read(step, [one for one in kernels if step[0] <= one[1] < step[1]]) for step in steps]
    read = [step for step in read if step["busy"]]
    if not read:
        shape.refuse("has no kernel inside of its steps (ProfilerStep#N): record at least one whole step")
    found = {name: statistics.median(step.get(name, 0.0) for step in read) / 1e6
             for name in dict.fromkeys(name for step in read for name in step)}
    named = {"step", "busy", "exposed", "in_collectives"}
    return Trace(
        rank=shape.rank(data), step_s=found["step"], busy_s=found["busy"], collectives_s=found["in_collectives"],
        exposed_s=found["exposed"], kinds={name: value for name, value in found.items() if name not in named},
        num_steps=len(read), num_kernels=len(kernels), device=_device(data), ours="rankscope" in data)


def _annotations(events: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return (event for event in events if event.get("cat") == "user_annotation")


def _read(step: _Interval, kernels: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """Microseconds of one step: its own, of the device, and by kind of kernel."""
    apart: dict[bool, list[_Interval]] = {True: [], False: []}
    found: dict[str, float] = {}
    for name, start, end in kernels:
        kind = next((kind for kind, words in _KINDS if words.search(name)), OTHER)
        found[kind] = found.get(kind, 0.0) + end - start
        apart[kind == COMMUNICATION].append((start, end))
    computing, calling = _length(apart[False]), _length(apart[True])
    busy = _length(apart[False] + apart[True])
    return {"step": step[1] - step[0], "busy": busy, "in_collectives": calling, "exposed": busy - computing, **found}


def _length(intervals: list[_Interval]) -> float:
    """Length of the union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _device(data: dict[str, Any]) -> str:
    devices = data.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else {}
    name = first.get("name") if isinstance(first, dict) else None
    return name[:80] if isinstance(name, str) else ""


def _unpacked(content: bytes, shape: _Shape) -> bytes:
    if not content.startswith(_GZIP):
        return content
    reader = zlib.decompressobj(wbits=31)
    try:
        plain = reader.decompress(content, _MOST_BYTES)
    except zlib.error as error:
        shape.refuse(f"cannot be unpacked: {error}")
    if reader.unconsumed_tail:
        shape.refuse(f"has more than {_MOST_BYTES:,} bytes unpacked: record fewer steps")
    if not reader.eof:
        shape.refuse("cannot be unpacked: it ends early")
    return plain


@dataclass(frozen=True)
class _Shape:
    """Checks of the file's values, which raise InputError."""

    where: str

    def refuse(self, message: str) -> NoReturn:
        raise InputError(Problem(self.where, message))

    def parsed(self, content: bytes) -> dict[str, Any]:
        """The JSON object, which has a list of events."""
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(Problem(self.where, f"is no trace of torch's profiler: {error}")) from None
        if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
            raise InputError(Problem(self.where, "is no trace of torch's profiler: it has no list of traceEvents"))
        return data

    def interval(self, event: dict[str, Any]) -> tuple[str, float, float]:
        """Name, start and end in microseconds."""
        name, start, length = event.get("name"), event.get("ts"), event.get("dur")
        if not (isinstance(name, str) and _is_number(start) and _is_number(length)) or length < 0:
            self.refuse("is no trace of torch's profiler: an event has no name, start (ts) and duration (dur)")
        return str(name), float(start), float(start) + float(length)

    def rank(self, data: dict[str, Any]) -> int | None:
        """Rank that the trace names."""
        about = data.get("distributedInfo")
        rank = about.get("rank") if isinstance(about, dict) else None
        return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
