"""Log lines of NeMo Automodel: the highest allocation since the line before, tokens a second.

[Note: units of Automodel's log]
Automodel 36044ad3 `recipes/llm/train_ft.py`, `log_train_metrics`, unchanged since v0.1.0: `step 3 | epoch 0 | loss .. |
grad_norm .. | lr .. | mem 50.12 GiB | tps 8000.00(1000.00/gpu) | num_label_tokens ..`, printed by rank 0. `mem` is
`max_memory_allocated` since the line before, in GiB. `tps` is of all GPUs; its tokens leave out padding at the end of a
sequence. `/gpu` is `tps` divided by data and context parallel ranks alone, so with tensor or pipeline parallelism it is
no rate of one GPU, and `tps` is read instead. `recipes/llm/kd.py` has no `/gpu`. Recipes of retrieval divide by 1e9 and
print no `tps`; they are not read.
`recipes/llm/benchmark.py`: `Rank 0 | Iteration 3 | .. | Max Memory Allocated: 50.12 GB | ..` in units of 1024**3 bytes
since the run began; `Average iteration time: 1.234 seconds (excluding first 10 warmup iterations)`; `Average MFU: 30%`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from simcore.validation.logs.reading import COUNT, GIB, NUMBER, Log, highest, number, steady

__all__ = ["WORDS", "read"]

WORDS: Final = ("| tps ", "Max Memory Allocated:", "Average iteration time:", "Average MFU:")
"""Words of which a line of this format has one."""
_STEP: Final = re.compile(rf"\bstep {COUNT} \|")
_MEMORY: Final = re.compile(rf"\| mem {NUMBER} GiB \|")
_RATE: Final = re.compile(rf"\| tps {NUMBER}")
_BENCHMARK: Final = re.compile(rf"\bRank {COUNT} \| Iteration {COUNT} \|")
_MOST: Final = re.compile(rf"\bMax Memory Allocated: {NUMBER} GB\b")
_TIME: Final = re.compile(rf"\bAverage iteration time: {NUMBER} seconds")
_MFU: Final = re.compile(rf"\bAverage MFU: {NUMBER}%")


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of an Automodel recipe for language models; None if no line is from one."""
    rows = [(int(step[1]), number(memory[1]) * GIB, number(rate[1])) for line in lines
            if (step := _STEP.search(line)) and (memory := _MEMORY.search(line)) and (rate := _RATE.search(line))]
    if rows:
        return Log("Automodel", (
            *highest("allocated_peak", [(step, size) for step, size, _ in rows], rank=0),
            *steady("tokens_per_s", [rate for _, _, rate in rows]),
        ), notes=("tokens a second of Automodel leave out padding at the end of sequences",))
    iterations = [(int(at[1]), int(at[2]), number(most[1]) * GIB) for line in lines
                  if (at := _BENCHMARK.search(line)) and (most := _MOST.search(line))]
    if not iterations:
        return None
    rank = iterations[0][0]
    times = [number(match[1]) for line in lines if (match := _TIME.search(line))]
    shares = [number(match[1]) / 100 for line in lines if (match := _MFU.search(line))]
    mean = "mean of the benchmark, without its warmup"
    return Log("Automodel's benchmark", (
        *highest("allocated_peak", [(after, size) for of, after, size in iterations if of == rank], rank),
        *steady("step_s", times[-1:], mean), *steady("mfu", shares[-1:], mean)))
