"""Log lines of torchtitan: memory that the allocator reserved, tokens a second.

[Note: units of torchtitan's log]
torchtitan b5bcd76c `components/metrics.py`: `memory` is the most that the allocator reserved since the line before, in
GiB of 1024**3 bytes (`_to_gib`); `tps` is tokens a second of one GPU, data parallel or not (`log`), until November 2024
called `wps`; `mfu` may be N/A. Its colours are escape sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from simcore.validation.logs.reading import COUNT, GIB, NUMBER, Log, highest, number, steady

__all__ = ["WORDS", "read"]

WORDS: Final = ("memory:",)
"""Words of which a line of this format has one."""
_STEP: Final = re.compile(rf"(?<!validate )\bstep: *{COUNT} ")
_MEMORY: Final = re.compile(rf"\bmemory: *{NUMBER}GiB *\(")
_SPEED: Final = {"tokens_per_s_per_gpu": re.compile(rf"\b(?:tps|wps): *{NUMBER}"),
                 "tflops_per_gpu": re.compile(rf"\btflops: *{NUMBER}"), "mfu": re.compile(rf"\bmfu: *{NUMBER}%")}


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of torchtitan; None if no line is from it."""
    rows = [(int(step[1]), number(memory[1]), line) for line in lines
            if (memory := _MEMORY.search(line)) and (step := _STEP.search(line))]
    if not rows:
        return None
    readings = highest("reserved_peak", [(step, gib * GIB) for step, gib, _ in rows])
    for what, pattern in _SPEED.items():
        values = [number(match[1]) for _, _, line in rows if (match := pattern.search(line))]
        readings += steady(what, [value / 100 for value in values] if what == "mfu" else values)
    return Log("torchtitan", tuple(readings))
