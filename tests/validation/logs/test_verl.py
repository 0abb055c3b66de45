"""Log of verl: memory since the worker began, seconds of the step and its phases."""

from __future__ import annotations

from simcore.validation.logs.reading import GIB
from training_logs import VERL, read, values


def test_a_step_of_reinforcement_learning() -> None:
    log = read(VERL)
    assert log.trainer == "verl"
    assert values(log) == {"allocated_peak": 41.25 * GIB, "reserved_peak": 51.25 * GIB, "step_s": 22,
                           "generation_s": 11, "training_s": 5.5, "logprob_s": 2.75, "tokens_per_s_per_gpu": 1000 / 22}
    assert log.readings[0].after == 2


def test_supervised_training() -> None:
    lines = "\n".join(f"step:{step} - train/loss:1.5 - train/lr(1e-3):0.01 - train/time(s):{time}"
                      for step, time in ((1, 9.0), (2, 2.0), (3, 3.0), (4, 4.0)))
    assert values(read(lines)) == {"step_s": 3.0}
