"""Logs of Megatron-LM and Megatron-Bridge: what their lines are read as."""

from __future__ import annotations

import pytest

from simcore.validation.logs.reading import Reading
from training_logs import BRIDGE, MEGATRON, iteration, megatron, read, values


def test_megatron_by_rank_in_mib() -> None:
    log = read(MEGATRON)
    assert (log.trainer, log.batch) == ("Megatron-LM", 128)
    assert values(log, 0) == {"allocated_end": 110 * 2**20, "allocated_peak": 260 * 2**20, "reserved_peak": 330 * 2**20,
                              "allocated_peak_first": 200 * 2**20}
    assert values(log, 4)["allocated_peak"] == 240 * 2**20
    assert values(log) == {"step_s": 2.0, "tflops_per_gpu": 400}


def test_after_the_first_iteration_alone_there_is_no_peak_of_a_later_one() -> None:
    assert set(values(read(megatron(0, 1, 100, 200, 300, 310)), 0)) == {
        "allocated_end", "allocated_peak_first", "reserved_peak"}


def test_bridge_in_units_of_a_thousand_million() -> None:
    log = read(BRIDGE)
    assert log.trainer == "Megatron-Bridge"
    assert values(log, 0) == {"allocated_end": pytest.approx(12.345e9), "allocated_peak": pytest.approx(50.123e9),
                              "reserved_peak": pytest.approx(61.5e9)}
    assert values(log) == {"step_s": 2.5, "tflops_per_gpu": 320.5}


def test_one_line_of_times_counts() -> None:
    (step, rate) = read(iteration(100, 1500, 300)).readings
    assert step == Reading("step_s", 1.5)
    assert rate.value == 300


def test_batches_that_grow_are_no_batch() -> None:
    assert read(iteration(1, 1, 1, batch=8) + "\n" + iteration(2, 1, 1, batch=16)).batch is None


def test_lines_that_say_less_are_read_as_far_as_they_go() -> None:
    line = " iteration 2/ 10 | elapsed time per iteration (ms): 1234.5 | loss scale: 1.0 |"
    assert values(read(line)) == {"step_s": 1.2345}
