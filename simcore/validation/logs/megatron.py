"""Log lines of Megatron-LM and Megatron-Bridge: memory by rank, time of an iteration.

[Note: units of Megatron's logs]
Megatron-LM, `report_memory`, core_v0.8.0 to main of 2026-08-22 (`megatron/training/utils.py`, from core_v0.18.0
`utils/common_utils.py`): what it calls MB is 1024 * 1024 bytes. `allocated` and `reserved` are of the moment, `max`
since the process began. It is printed by one rank of each data-parallel group, after the first iteration, whose peak
lacks the optimizer's states, and again after the second.
Megatron-Bridge 0.2.0 to main of 2026-08-22, `training/utils/train_utils.py`: what it calls GB is 1e9 bytes, rounded to
five digits, under the names of `MEMORY_KEYS`; `Step Time` is in seconds.
Iteration lines of both are in ms, with TFLOP/s of one GPU where asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from simcore.validation.logs.reading import COUNT, MIB, NUMBER, Log, Reading, number, steady

__all__ = ["WORDS", "read"]

WORDS: Final = ("memory (", "elapsed time per iteration", "Step Time")
"""Words of which a line of this format has one."""
_GB: Final = 10**9

# Each pattern matches one value, so that even a very long line takes at most one pass for each.
_MEMORY: Final = re.compile(rf"\[Rank {COUNT}\] *\(after {COUNT} iterations\) memory \((MB|GB)\)((?: *\|[^|]*)+)")
_ITERATION: Final = re.compile(rf"\belapsed time per iteration \(ms\): *{NUMBER}")
_THROUGHPUT: Final = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\): *{NUMBER}")
_BATCH: Final = re.compile(rf"\bglobal batch size: *{COUNT}\b")
_STEP_TIME: Final = re.compile(rf"\bStep Time *: *{NUMBER}s GPU utilization: *{NUMBER}")

_OF_MEGATRON: Final = {"allocated": "allocated_end", "max allocated": "allocated_peak", "max reserved": "reserved_peak"}
_OF_BRIDGE: Final = {"mem-allocated-gigabytes": "allocated_end", "mem-max-allocated-gigabytes": "allocated_peak",
                     "mem-max-reserved-gigabytes": "reserved_peak"}


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of a Megatron trainer; None if no line is from one."""
    readings = [*_of_memory(lines), *_of_iterations(lines)]
    if not readings:
        return None
    is_bridge = any("memory (GB)" in line or _STEP_TIME.search(line) for line in lines)
    batches = {int(match[1]) for line in lines if (match := _BATCH.search(line))}
    return Log("Megatron-Bridge" if is_bridge else "Megatron-LM", tuple(readings),
               batches.pop() if len(batches) == 1 else None)


def _of_memory(lines: Sequence[str]) -> Iterator[Reading]:
    """Last readings of each rank, as maxima only grow; those of the first iteration are separate readings."""
    first: dict[tuple[int, str], Reading] = {}
    last: dict[tuple[int, str], Reading] = {}
    for line in lines:
        for match in _MEMORY.finditer(line):
            rank, after = int(match[1]), int(match[2])
            for what, value in _values(match[4], _OF_MEGATRON if match[3] == "MB" else _OF_BRIDGE,
                                       MIB if match[3] == "MB" else _GB):
                name = "allocated_peak_first" if (what, after) == ("allocated_peak", 1) else what
                kept = first if name != what else last
                kept[rank, what] = Reading(name, value, rank, after)
    yield from (*last.values(), *first.values())


def _values(text: str, names: dict[str, str], unit: int) -> Iterator[tuple[str, float]]:
    for part in text.split("|"):
        name, _, value = part.partition(":")
        if name.strip() in names and (found := re.match(rf" *{NUMBER}", value)):
            yield names[name.strip()], number(found[1]) * unit


def _of_iterations(lines: Sequence[str]) -> Iterator[Reading]:
    iteration_lines = [line for line in lines if _ITERATION.search(line)]
    times = [number(match[1]) / 1000 for line in iteration_lines if (match := _ITERATION.search(line))]
    rates = [number(match[1]) for line in iteration_lines if (match := _THROUGHPUT.search(line))]
    step_lines = [match for line in lines if (match := _STEP_TIME.search(line))]
    yield from steady("step_s", times or [number(match[1]) for match in step_lines])
    yield from steady("tflops_per_gpu", rates or [number(match[2]) for match in step_lines])
