"""Log of Automodel: what lines of training and of its benchmark are read as."""

from __future__ import annotations

import pytest

from simcore.validation.logs.reading import GIB
from simcore.validation.logs.registry import read_log
from training_logs import AUTOMODEL, BENCHMARK, automodel, read, values


def test_memory_is_of_rank_0_and_tokens_are_of_all_gpus() -> None:
    log = read(AUTOMODEL)
    assert log.trainer == "Automodel"
    assert values(log, 0) == {"allocated_peak": pytest.approx(50.12 * GIB)}
    assert values(log) == {"tokens_per_s": 8200}
    (memory, _) = log.readings
    assert (memory.after, memory.num_lines) == (1, 4)
    assert "padding" in log.notes[0]


def test_distillation_has_no_rate_of_a_gpu() -> None:
    line = automodel(3, 10, 80).replace("(20.00/gpu)", "") + " | kd_ratio 0.50 | temperature 1.00"
    assert values(read(line)) == {"tokens_per_s": 80}


def test_the_benchmark() -> None:
    log = read(BENCHMARK)
    assert log.trainer == "Automodel's benchmark"
    assert values(log, 0) == {"allocated_peak": pytest.approx(61.5 * GIB)}
    assert values(log) == {"step_s": 1.25, "mfu": pytest.approx(0.315)}


def test_retrieval_prints_another_unit_and_is_not_read() -> None:
    assert read_log("step 1 | epoch 0 | loss 1.0 | loss_avg_window 1.0 | lr 1e-05 | mem 9.99 GiB | time 1.00s") is None
