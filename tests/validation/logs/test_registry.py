"""Formats of logs, recognised by what a text says, and texts that are of none."""

from __future__ import annotations

import time

import pytest

from simcore.validation.logs.registry import read_log
from training_logs import LOGS, iteration, read


@pytest.mark.parametrize("name", LOGS)
def test_every_format_is_recognised_by_what_it_says(name: str) -> None:
    assert read(LOGS[name]).trainer == name


@pytest.mark.parametrize("name", LOGS)
def test_prefixes_colours_and_carriage_returns_change_nothing(name: str) -> None:
    dressed = "".join(f"\x1b[36m3: [default0]:2026-01-01 00:00:00 {line}\x1b[0m\r\n" for line in LOGS[name].split("\n"))
    plain, found = read(LOGS[name]), read(dressed)
    assert found.trainer == plain.trainer
    assert [one for one in found.readings if "bar" not in one.note] == [
        one for one in plain.readings if "bar" not in one.note]


def test_the_program_counts_before_those_that_it_runs_inside() -> None:
    assert read(f"{LOGS['Megatron-LM']}\n{LOGS['verl']}").trainer == "verl"
    assert read(f"{LOGS['Megatron-LM']}\n{LOGS['torchtitan']}").trainer == "Megatron-LM"


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
        began = time.process_time()
        assert read_log(words * 100_000) is None
        assert time.process_time() - began < 5
