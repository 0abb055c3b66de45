"""Log of the Trainer of transformers: dictionaries, tables, memory of its tracker."""

from __future__ import annotations

import pytest

from simcore.validation.logs.reading import MIB
from simcore.validation.logs.registry import read_log
from training_logs import TABLE, TRAINER, read, values


def test_a_run_of_version_4() -> None:
    log = read(TRAINER)
    assert (log.trainer, log.batch) == ("the Hugging Face Trainer", 1024)
    assert values(log, 0) == {"allocated_peak": 1000 + 20000 + 300000 + 4000000}
    assert values(log) == {"samples_per_s": 25.6, "step_s": pytest.approx((63 * 60 + 18) / 99)}


def test_a_run_of_version_5_quotes_its_numbers() -> None:
    log = read("{'train_runtime': '100.5', 'train_samples_per_second': '8', 'train_steps_per_second': '0.25'}")
    assert values(log) == {"samples_per_s": 8, "step_s": 4}


def test_a_table_is_in_mebibytes() -> None:
    log = read(TABLE)
    assert values(log, 0) == {"allocated_peak": 3500 * MIB}
    assert values(log) == {"samples_per_s": 8.5, "step_s": 2}


def test_without_the_start_there_is_no_peak() -> None:
    assert "allocated_peak" not in values(read(TABLE.replace("before_init", "after_init")), 0)


@pytest.mark.parametrize("text", ["{'eval_loss': 2.0, 'epoch': 0.1}", "{'loss': nan}", "{'loss': 'x'}", "{'a': {}}",
                                  "{'loss': 1.0, 'epoch': 0.1}"])
def test_what_has_no_number_to_compare(text: str) -> None:
    assert read_log(text) is None
