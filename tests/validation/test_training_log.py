"""Readings of logs: lines as torchtitan, Megatron-LM and Megatron-Bridge print them, with numbers of our own."""

from __future__ import annotations

import time

import pytest

from simcore.validation.training_log import Log, Reading, read_log

GIB = 2**30

RED, GREEN, BLUE, SEA, RESET = "\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[38;2;54;234;195m", "\x1b[39m"


def titan(step: int, gib: str, tps: str, tflops: str, mfu: str) -> str:
    """As `MetricsProcessor.log` of torchtitan b5bcd76c, colours included."""
    return (f"[titan] 2026-01-01 00:00:00,000 - root - INFO - {RED}step: {step:2}  {GREEN}loss: {11.5:8.5f}  "
            f"grad_norm: {1.25:7.4f}  {SEA}memory: {gib:>5}GiB(51.44%)  {BLUE}tps: {tps}  tflops: {tflops}  "
            f"mfu: {mfu}{RESET}")


TITAN = "\n".join([
    "[titan] 2026-01-01 00:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 with 79.10GiB memory",
    titan(1, "40.10", "1,000", "50.00", "5.00%"), titan(10, "48.87", "4,000", "250.00", "25.00%"),
    titan(20, "48.50", "4,400", "1,270.00", "N/A"), titan(30, "48.50", "4,200", "260.00", "27.00%"),
    f"[titan] x - {RED}validate step: 30  {GREEN}loss:  9.0000  {SEA}memory: 70.00GiB(88.00%)  {BLUE}tps: 9,000"])


def megatron(rank: int, after: int, *values: float) -> str:
    """As `report_memory` of Megatron-LM."""
    names = ("allocated", "max allocated", "reserved", "max reserved")
    return f"[Rank {rank}] (after {after} iterations) memory (MB)" + "".join(
        f" | {name}: {value:.2f}" for name, value in zip(names, values, strict=True))


def iteration(number: int, ms: float, tflops: float, batch: int = 128) -> str:
    return (f" [2026-01-01 00:00:00.000000] iteration {number:8d}/{100:8d} | consumed samples: {number * batch:12d} |"
            f" elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
            f" learning rate: 1.000000E-05 | global batch size: {batch:5d} | lm loss: 1.1E+01 | loss scale: 1.0 |")


MEGATRON = "\n".join([
    "Number of parameters in transformer block in billions:  8.03", iteration(1, 9000, 40),
    megatron(0, 1, 100, 200, 300, 310.5), megatron(4, 1, 90, 190, 280, 290), iteration(2, 2000, 400),
    megatron(0, 2, 110, 260, 320, 330), megatron(4, 2, 95, 240, 300, 310), iteration(3, 1900, 420),
    iteration(4, 2100, 380),
    "[Rank 0] (before save_checkpoint for iteration 4) memory (MB) | allocated: 999.00 | max allocated: 999.00"])

BRIDGE = "\n".join([
    "Step Time : 30.50s GPU utilization: 20.5MODEL_TFLOP/s/GPU",
    "Step Time : 2.50s GPU utilization: 320.5MODEL_TFLOP/s/GPU",
    "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 12.345 | mem-active-gigabytes: 12.4 |"
    " mem-inactive-gigabytes: 0.1 | mem-reserved-gigabytes: 60.0 | mem-max-allocated-gigabytes: 50.123 |"
    " mem-max-active-gigabytes: 50.2 | mem-max-inactive-gigabytes: 1.0 | mem-max-reserved-gigabytes: 61.5 |"
    " mem-alloc-retires: 0 | mem-allocated-count: 1234"])


def read(text: str) -> Log:
    found = read_log(text)
    assert found is not None
    return found


def values(log: Log, rank: int | None = None) -> dict[str, float]:
    return {reading.of: reading.value for reading in log.readings if reading.rank == rank}


def test_torchtitan() -> None:
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


@pytest.mark.parametrize("text", ["", "a text", "step: 1 loss: 2", "memory: 12.3GiB(1%)", "\x00\x01\x02",
                                  "iteration 1/2 | x"])
def test_what_is_no_log(text: str) -> None:
    assert read_log(text) is None


@pytest.mark.parametrize("line", [
    "step: {}  memory: 12.3GiB(1%)", "step: 1  memory: {}GiB(1%)", "[Rank {}] (after 1 iterations) memory (MB) | a: 1",
    "[Rank 0] (after {} iterations) memory (MB) | max allocated: 1"])
def test_a_number_that_no_run_has_is_no_reading(line: str) -> None:
    assert read_log(line.format("9" * 5000)) is None


def test_a_batch_that_no_run_has_is_not_read() -> None:
    assert read(iteration(1, 1, 1, batch=10**4000)).batch is None


def test_a_long_line_takes_no_time() -> None:
    for words in ("step: 1 ", "memory: 1", "iteration 1/ 1 | ", "[Rank 0] (after 1 iterations) memory (MB) ", "| a "):
        began = time.perf_counter()
        assert read_log(words * 100_000) is None
        assert time.perf_counter() - began < 5
