"""Log lines of verl: metrics of a step in one line, with memory and seconds of its phases.

[Note: metrics of verl]
verl 0.8.0.dev (b178a3cd) `utils/logger/aggregate_logger.py`: `step:1 - actor/loss:0.1 - perf/time_per_step:12.3 - ..`;
with numpy 2 values are `np.float64(12.3)`. `workers/fsdp_workers.py` and `workers/megatron_workers.py`:
`perf/max_memory_allocated_gb` and `perf/max_memory_reserved_gb` are those of torch since the worker began, in units of
1024**3 bytes, of one rank or the highest of all by the version, and only of the update of the actor.
`trainer/ppo/ray_trainer.py`: `timing_s/step`, `timing_s/gen`, `timing_s/old_log_prob`, `timing_s/ref`,
`timing_s/update_actor`. `trainer/ppo/metric_utils.py`: `perf/throughput` is tokens of prompts and answers a second of
one GPU. `trainer/fsdp_sft_trainer.py`: `train/time(s)`. `perf/mfu/actor` is of the update alone and is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from simcore.validation.logs.reading import COUNT, GIB, Log, Reading, highest, steady

__all__ = ["WORDS", "read"]

WORDS: Final = (" - timing_s/", " - perf/", " - train/time(s):")
"""Words of which a line of this format has one."""
_STEP: Final = re.compile(rf"\bstep: ?{COUNT} - ")
_PAIR: Final = re.compile(
    r"([a-z_]{1,40}/[A-Za-z0-9_()/]{1,80}): ?(?:np\.float(?:64|32)\()?([0-9]{1,20}(?:\.[0-9]{1,30})?)")
_MEMORY: Final = {"allocated_peak": "perf/max_memory_allocated_gb", "reserved_peak": "perf/max_memory_reserved_gb"}
_TIMES: Final = {"step_s": ("timing_s/step", "train/time(s)"), "generation_s": ("timing_s/gen",),
                 "training_s": ("timing_s/update_actor",)}
_PASSES: Final = ("timing_s/old_log_prob", "timing_s/ref")


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of a verl trainer; None if no line has its metrics."""
    steps = {int(match[1]): {name: float(text) for name, text in _PAIR.findall(line)}
             for line in lines if (match := _STEP.search(line))}
    readings = [*_memory(steps), *_times(list(steps.values()))]
    return Log("verl", tuple(readings)) if readings else None


def _memory(steps: Mapping[int, Mapping[str, float]]) -> Iterator[Reading]:
    for of, name in _MEMORY.items():
        values: list[tuple[int | None, float]] = [(step, one[name] * GIB) for step, one in steps.items() if name in one]
        yield from highest(of, values, note="since the worker began, to the end of an update of the actor")


def _times(steps: Sequence[Mapping[str, float]]) -> Iterator[Reading]:
    for of, names in _TIMES.items():
        yield from steady(of, [one[name] for one in steps for name in names if name in one])
    passes = [sum(one.get(name, 0.0) for name in _PASSES) for one in steps if _PASSES[0] in one]
    yield from steady("logprob_s", passes)
    yield from steady("tokens_per_s_per_gpu", [one["perf/throughput"] for one in steps if "perf/throughput" in one])
