"""Log of NeMo RL: a step and its phases, each a median without the first step."""

from __future__ import annotations

from training_logs import NEMO_RL, read, values


def test_a_phase_includes_the_copies_before_it() -> None:
    log = read(NEMO_RL)
    assert log.trainer == "NeMo RL"
    assert values(log) == {"step_s": 11, "generation_s": 4, "refit_s": 1, "logprob_s": 1.75, "training_s": 3.5}


def test_supervised_training_has_one_phase() -> None:
    lines = "  \u2022 Total step time: 5.00s\n  \u2022 policy_training: 4.00s (80.0%)"
    assert values(read(lines)) == {"step_s": 5, "training_s": 4}
