"""Memory and speed in training logs: lines that torchtitan, Megatron-LM and Megatron-Bridge print.

Input: the log's text. Output: a `Log`, in bytes and seconds. All other lines of the log are ignored.

[Note: units of logs]
torchtitan b5bcd76c `components/metrics.py`: `memory` is the most that the allocator reserved since the line before, in
GiB of 1024**3 bytes (`_to_gib`); `tps` is tokens a second of one GPU, data parallel or not (`log`), until November 2024
called `wps`; `mfu` may be N/A. Its colours are escape sequences, which are taken out.
Megatron-LM, `report_memory`, core_v0.8.0 to main of 2026-08-22 (`megatron/training/utils.py`, from core_v0.18.0
`utils/common_utils.py`): what it calls MB is 1024 * 1024 bytes. `allocated` and `reserved` are of the moment, `max`
since the process began. It is printed by one rank of each data-parallel group, after the first iteration, whose peak
lacks the optimizer's states, and again after the second.
Megatron-Bridge 0.2.0 to main of 2026-08-22, `training/utils/train_utils.py`: what it calls GB is 1e9 bytes, rounded to
five digits, under the names of `MEMORY_KEYS`; `Step Time` is in seconds.
Iteration lines of both are in ms, with TFLOP/s of one GPU where asked for.

[Note: which lines count]
The first line of times is left out if there are others, because it includes one-time work (compilation, autotuning, the
first collectives). The median of the others counts. For memory the highest value counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

__all__ = ["Log", "Reading", "read_log"]

_MIB, _GIB, _GB = 2**20, 2**30, 10**9
_NUMBER: Final = r"([0-9][0-9,]{0,30}(?:\.[0-9]+)?)"
_COUNT: Final = r"([0-9]{1,15})"
"""A count with a limited number of digits, because Python converts very long numbers slowly or not at all."""
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")

# Each pattern matches one value, so that even a very long line takes at most one pass for each.
_TITAN_STEP: Final = re.compile(rf"(?<!validate )\bstep: *{_COUNT} ")
_TITAN: Final = re.compile(rf"\bmemory: *{_NUMBER}GiB *\(")
_TITAN_SPEED: Final = {"tokens_per_s_per_gpu": re.compile(rf"\b(?:tps|wps): *{_NUMBER}"),
                       "tflops_per_gpu": re.compile(rf"\btflops: *{_NUMBER}"),
                       "mfu": re.compile(rf"\bmfu: *{_NUMBER}%")}
_MEMORY: Final = re.compile(rf"\[Rank {_COUNT}\] *\(after {_COUNT} iterations\) memory \((MB|GB)\)((?: *\|[^|]*)+)")
_ITERATION: Final = re.compile(rf"\belapsed time per iteration \(ms\): *{_NUMBER}")
_THROUGHPUT: Final = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\): *{_NUMBER}")
_BATCH: Final = re.compile(rf"\bglobal batch size: *{_COUNT}\b")
_STEP_TIME: Final = re.compile(rf"\bStep Time *: *{_NUMBER}s GPU utilization: *{_NUMBER}")

_OF_MEGATRON: Final = {"allocated": "allocated_end", "max allocated": "allocated_peak", "max reserved": "reserved_peak"}
_OF_BRIDGE: Final = {"mem-allocated-gigabytes": "allocated_end", "mem-max-allocated-gigabytes": "allocated_peak",
                     "mem-max-reserved-gigabytes": "reserved_peak"}


@dataclass(frozen=True)
class Reading:
    """One number from a log. `of`: its quantity; `rank`: of its line, None if that names none.

    Quantities: `allocated_peak`, `allocated_peak_first` (of the first iteration), `allocated_end`, `reserved_peak` in
    bytes; `step_s`, `tokens_per_s_per_gpu`, `tflops_per_gpu`, `mfu` (a share), which are medians of `num_lines` lines.
    `after`: iteration or step of the line, None for a median.
    """

    of: str
    value: float
    rank: int | None = None
    after: int | None = None
    num_lines: int = 1


@dataclass(frozen=True)
class Log:
    """Numbers of one training log. `trainer`: program that printed it.

    `readings`: in no fixed order; `batch`: global batch size in sequences, None if it is not printed or varies.
    """

    trainer: str
    readings: tuple[Reading, ...]
    batch: int | None = None


def read_log(text: str) -> Log | None:
    """Memory and speed in the text of a training log; None if no line is from torchtitan or a Megatron trainer."""
    plain = _ESCAPES.sub("", text)
    lines = plain.splitlines()
    titan = _of_titan(lines)
    megatron = [*_of_memory(lines), *_of_iterations(lines)]
    if titan and not megatron:
        return Log("torchtitan", tuple(titan))
    if not megatron:
        return None
    is_bridge = any("memory (GB)" in line or _STEP_TIME.search(line) for line in lines)
    batches = {int(match[1]) for line in lines if (match := _BATCH.search(line))}
    return Log("Megatron-Bridge" if is_bridge else "Megatron-LM", tuple(megatron),
               batches.pop() if len(batches) == 1 else None)


def _of_titan(lines: Sequence[str]) -> list[Reading]:
    lines_read = [(int(step[1]), _number(memory[1]), line) for line in lines
             if (memory := _TITAN.search(line)) and (step := _TITAN_STEP.search(line))]
    if not lines_read:
        return []
    highest = max(lines_read, key=lambda row: row[1])
    readings = [Reading("reserved_peak", highest[1] * _GIB, after=highest[0], num_lines=len(lines_read))]
    for what, pattern in _TITAN_SPEED.items():
        values = [_number(match[1]) for _, _, line in lines_read if (match := pattern.search(line))]
        readings += _steady(what, [value / 100 for value in values] if what == "mfu" else values)
    return readings


def _of_memory(lines: Sequence[str]) -> Iterator[Reading]:
    """Last readings of each rank, as maxima only grow; those of the first iteration are separate readings."""
    first: dict[tuple[int, str], Reading] = {}
    last: dict[tuple[int, str], Reading] = {}
    for line in lines:
        for match in _MEMORY.finditer(line):
            rank, after = int(match[1]), int(match[2])
            for what, value in _values(match[4], _OF_MEGATRON if match[3] == "MB" else _OF_BRIDGE,
                                       _MIB if match[3] == "MB" else _GB):
                name = "allocated_peak_first" if (what, after) == ("allocated_peak", 1) else what
                kept = first if name != what else last
                kept[rank, what] = Reading(name, value, rank, after)
    yield from (*last.values(), *first.values())


def _values(text: str, names: dict[str, str], unit: int) -> Iterator[tuple[str, float]]:
    for part in text.split("|"):
        name, _, value = part.partition(":")
        if name.strip() in names and (number := re.match(rf" *{_NUMBER}", value)):
            yield names[name.strip()], _number(number[1]) * unit


def _of_iterations(lines: Sequence[str]) -> Iterator[Reading]:
    iteration_lines = [line for line in lines if _ITERATION.search(line)]
    times = [_number(match[1]) / 1000 for line in iteration_lines if (match := _ITERATION.search(line))]
    rates = [_number(match[1]) for line in iteration_lines if (match := _THROUGHPUT.search(line))]
    step_lines = [match for line in lines if (match := _STEP_TIME.search(line))]
    yield from _steady("step_s", times or [_number(match[1]) for match in step_lines])
    yield from _steady("tflops_per_gpu", rates or [_number(match[2]) for match in step_lines])


def _steady(what: str, values: Sequence[float]) -> list[Reading]:
    """Median of all values but the first."""
    later = values[1:] or values
    return [Reading(what, median(later), num_lines=len(later))] if later else []


def _number(text: str) -> float:
    return float(text.replace(",", ""))
