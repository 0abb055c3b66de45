"""Log lines of NeMo RL: seconds of a step and of its phases.

[Note: timers of NeMo RL]
NeMo RL 7ea279ab `algorithms/grpo.py` and `algorithms/sft.py` print after every step `  • Total step time: 12.34s` and
each timer as `  • policy_training: 5.67s (45.9%)`. Phases of a colocated step: `generation`;
`prepare_for_generation/total` is the refit with its copies; `logprob_inference_prep` and `training_prep` move states
to the device for `policy_and_reference_logprobs` and `policy_training`. Memory is not printed. Rates are not read:
`algorithms/utils.py`, `print_performance_metrics`, divides tokens by the time of single phases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from simcore.validation.logs.reading import NUMBER, Log, Reading, number, steady

__all__ = ["WORDS", "read"]

_PHASES: Final = {"generation_s": ("generation",), "refit_s": ("prepare_for_generation/total",),
                  "logprob_s": ("logprob_inference_prep", "policy_and_reference_logprobs"),
                  "training_s": ("training_prep", "policy_training")}
_TIMERS: Final = tuple(name for names in _PHASES.values() for name in names)
WORDS: Final = ("Total step time: ", *(f" {name}: " for name in _TIMERS))
"""Words of which a line of this format has one."""
_TOTAL: Final = re.compile(rf"\u2022 Total step time: {NUMBER}s")
_TIMER: Final = re.compile(rf"\u2022 ({'|'.join(_TIMERS)}): {NUMBER}s \(")


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of a NeMo RL algorithm; None if no line is a total of a step."""
    totals = [number(match[1]) for line in lines if (match := _TOTAL.search(line))]
    if not totals:
        return None
    return Log("NeMo RL", (*steady("step_s", totals), *_phases(lines)))


def _phases(lines: Sequence[str]) -> Iterator[Reading]:
    timers: dict[str, list[float]] = {}
    for line in lines:
        if match := _TIMER.search(line):
            timers.setdefault(match[1], []).append(number(match[2]))
    for of, names in _PHASES.items():
        medians = [reading for name in names for reading in steady(name, timers.get(name, ()))]
        if names[-1] in timers:
            note = f"{' and '.join(reading.of for reading in medians)}, median of {medians[-1].num_lines} steps"
            yield Reading(of, sum(reading.value for reading in medians), num_lines=medians[-1].num_lines, note=note)
