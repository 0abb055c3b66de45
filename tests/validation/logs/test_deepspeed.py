"""Log of DeepSpeed: memory in passes and before the first, timers, samples; inside a Trainer too."""

from __future__ import annotations

import pytest

from simcore.validation.logs.reading import GIB
from training_logs import DEEPSPEED, TRAINER, read, usage, values


def test_memory_in_passes_is_the_peak_and_that_before_them_is_not() -> None:
    log = read(DEEPSPEED)
    assert log.trainer == "DeepSpeed"
    assert values(log, 0) == {"allocated_peak": 40.25 * GIB, "reserved_peak": 50 * GIB, "allocated_start": 12.5 * GIB}


def test_timers_of_a_whole_step_and_samples() -> None:
    assert values(read(DEEPSPEED)) == {"step_s": pytest.approx(1.0), "forward_s": pytest.approx(0.3),
                                       "backward_s": pytest.approx(0.6), "optimizer_s": pytest.approx(0.1),
                                       "samples_per_s": 8.0}


def test_without_memory_in_passes_there_is_no_peak() -> None:
    assert values(read(usage("Before creating fp16 partitions", 30.0, 99.0, 99.0, 99)), 0) == {
        "allocated_start": 30 * GIB}


def test_the_line_of_throughput_has_a_peak() -> None:
    line = ("epoch=0/micro_step=9/global_step=9, RunningAvgSamplesPerSec=7.5, CurrSamplesPerSec=8.0, "
            "MemAllocated=12.5GB, MaxMemAllocated=41.5GB")
    assert values(read(line), 0) == {"allocated_peak": 41.5 * GIB}


def test_a_pipeline() -> None:
    assert values(read("steps: 10 loss: 1.2345 iter time (s): 0.500 samples/sec: 64.000")) == {
        "step_s": 0.5, "samples_per_s": 64}


def test_inside_a_trainer_it_adds_what_that_does_not_print() -> None:
    log = read(f"{TRAINER}\n{DEEPSPEED}")
    assert log.trainer == "the Hugging Face Trainer, DeepSpeed"
    assert values(log, 0) == {"allocated_peak": 4321000, "reserved_peak": 50 * GIB, "allocated_start": 12.5 * GIB}
    assert values(log)["samples_per_s"] == 25.6
