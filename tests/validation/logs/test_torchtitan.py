"""Log of torchtitan: what its lines are read as."""

from __future__ import annotations

import pytest

from simcore.validation.logs.reading import GIB
from training_logs import TITAN, read, values


def test_memory_is_reserved_and_the_first_line_of_times_is_left_out() -> None:
    log = read(TITAN)
    assert (log.trainer, log.batch) == ("torchtitan", None)
    shares = values(log)
    assert shares.pop("reserved_peak") == pytest.approx(48.87 * GIB)
    assert shares == {"tokens_per_s_per_gpu": 4200, "tflops_per_gpu": 260, "mfu": pytest.approx(0.26)}
    (memory, *_) = log.readings
    assert (memory.after, memory.num_lines) == (10, 4)


def test_torchtitan_of_2024_said_words_a_second() -> None:
    assert values(read("step: 10  loss: 9.1  memory: 40.00GiB(50.00%)  wps: 5,100  mfu: 30.10%"))[
        "tokens_per_s_per_gpu"] == 5100
