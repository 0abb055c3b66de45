"""Log lines of DeepSpeed: `see_memory_usage`, samples a second, wall-clock breakdown.

[Note: units of DeepSpeed's log]
DeepSpeed 0.19.6 (edaa7221), and 0.16.1 as logs of issues show it. `runtime/utils.py`, `see_memory_usage`, of rank 0: a
message, then `MA 1.23 GB  Max_MA 4.56 GB  CA 7.89 GB  Max_CA 8 GB` in units of 1024**3 bytes: allocated, its maximum
since the line before, reserved, and its maximum rounded to a whole unit. `runtime/engine.py` prints it in every pass
(messages `Engine before forward` to `Engine after step`) if `memory_breakdown` is set; without it lines are from before
the first step, and their maximum is not that of training.
`utils/timer.py`, ThroughputTimer: `epoch=0/micro_step=2/global_step=2, RunningAvgSamplesPerSec=..,
CurrSamplesPerSec=.., MemAllocated=1.2GB, MaxMemAllocated=3.4GB`; samples are of the global batch.
`runtime/pipe/engine.py`: `steps: 10 loss: 1.2345 iter time (s): 0.500 samples/sec: 64.000`.
SynchronizedWallClockTimer, if `wall_clock_breakdown` is set: `[Rank 0] time (ms) | fwd: .. | bwd: .. | bwd_inner: .. |
bwd_allreduce: .. | step: ..` of a whole step; those of one microbatch end in `_microstep` and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from simcore.validation.logs.reading import COUNT, GIB, NUMBER, Log, Reading, highest, number, steady

__all__ = ["WORDS", "read"]

WORDS: Final = ("Max_MA ", "Engine before ", "Engine after ", "CurrSamplesPerSec=", "samples/sec:", "time (ms) |")
"""Words of which a line of this format has one."""
_USAGE: Final = re.compile(rf"\bMA {NUMBER} GB +Max_MA {NUMBER} GB +CA {NUMBER} GB +Max_CA {NUMBER} GB")
_PASS: Final = re.compile(r"\bEngine (?:before|after) (?:forward|backward|step)\b")
_RATE: Final = re.compile(rf"\bCurrSamplesPerSec={NUMBER}")
_MOST: Final = re.compile(rf"\bglobal_step={COUNT},.{{0,300}}\bMaxMemAllocated={NUMBER}GB")
_PIPELINE: Final = re.compile(rf"\biter time \(s\): {NUMBER} samples/sec: {NUMBER}")
_PART: Final = re.compile(rf"\| (fwd|bwd|step): {NUMBER}(?= *(?:\||$))")
_PARTS: Final = {"fwd": "forward_s", "bwd": "backward_s", "step": "optimizer_s"}


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of a DeepSpeed engine; None if no line is from one."""
    readings = [*_memory(lines), *_times(lines)]
    return Log("DeepSpeed", tuple(readings)) if readings else None


def _memory(lines: Sequence[str]) -> Iterator[Reading]:
    start: float | None = None
    peaks: list[tuple[int | None, float]] = []
    reserved: list[tuple[int | None, float]] = []
    in_pass = False
    for line in lines:
        usage = _USAGE.search(line)
        if usage is None:
            in_pass = in_pass or _PASS.search(line) is not None
        elif in_pass:
            peaks.append((None, number(usage[2]) * GIB))
            reserved.append((None, number(usage[4]) * GIB))
            in_pass = False
        else:
            start = number(usage[1]) * GIB
    if not peaks:
        peaks = [(int(match[1]), number(match[2]) * GIB) for line in lines if (match := _MOST.search(line))]
    yield from highest("allocated_peak", peaks, 0, f"the highest of {len(peaks)} lines, rank 0")
    yield from highest("reserved_peak", reserved, 0, "rank 0, rounded to a whole GiB")
    if start is not None:
        yield Reading("allocated_start", start, 0, note="rank 0, in the last line from before the first step")


def _times(lines: Sequence[str]) -> Iterator[Reading]:
    parts: dict[str, list[float]] = {name: [] for name in _PARTS}
    for line in lines:
        found = dict(_PART.findall(line))
        if "time (ms) |" in line and found.keys() == parts.keys():
            for name, text in found.items():
                parts[name].append(number(text) / 1000)
    sums = [sum(values) for values in zip(*parts.values(), strict=True)]
    pipeline = [match for line in lines if (match := _PIPELINE.search(line))]
    note = f"fwd, bwd and step together, median of {max(len(sums) - 1, 1)} lines"
    yield from steady("step_s", [number(match[1]) for match in pipeline]) or steady("step_s", sums, note)
    for name, of in _PARTS.items():
        yield from steady(of, parts[name])
    rates = [number(match[1]) for line in lines if (match := _RATE.search(line))]
    yield from steady("samples_per_s", rates or [number(match[2]) for match in pipeline])
