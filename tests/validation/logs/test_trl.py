"""Log of TRL: tokens of all ranks, time of a step of GRPO."""

from __future__ import annotations

from training_logs import TRL, bar, read, values


def test_tokens_by_the_time_of_the_run() -> None:
    log = read(TRL)
    assert log.trainer == "TRL"
    assert values(log) == {"tokens_per_s": 2000, "samples_per_s": 4, "step_s": 2}


def test_grpo_has_a_time_of_its_own_which_counts_before_the_bar() -> None:
    lines = [f"{{'loss': 0.0, 'num_tokens': {at}.0, 'completions/mean_length': 99.0, 'step_time': {time}}}"
             for at, time in enumerate((30.0, 9.0, 11.0, 10.0))]
    log = read("\n".join([bar(1, "00:10") + bar(90, "59:10"), *lines]))
    assert (log.trainer, values(log)) == ("TRL", {"step_s": 10.0})
