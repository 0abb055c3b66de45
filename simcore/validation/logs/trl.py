"""Log lines of TRL, whose trainers are Trainers of transformers with metrics of their own.

[Note: metrics of TRL]
TRL 1.16.0, and main f2cd5771 of 2026-07-24: `trainer/sft_trainer.py` adds `num_tokens`, the tokens of all ranks since
the beginning without padding, and `mean_token_accuracy`; `trainer/dpo_trainer.py` and others `rewards/chosen`;
`trainer/grpo_trainer.py` `completions/mean_length` and `step_time`, seconds of one step's training and generation on
rank 0. `num_tokens` by `train_runtime` is the rate of all GPUs over the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.validation.logs import hf_trainer
from simcore.validation.logs.reading import Log, Reading, steady

__all__ = ["WORDS", "read"]

WORDS: Final = hf_trainer.WORDS
"""Words of which a line of this format has one."""
_OWN: Final = ("num_tokens", "mean_token_accuracy", "rewards/chosen", "completions/mean_length")


def read(lines: Sequence[str]) -> Log | None:
    """Numbers of a trainer of TRL; None if no line has metrics that only TRL logs."""
    found = list(hf_trainer.metrics(lines))
    if not any(name in one for one in found for name in _OWN):
        return None
    last = {key: value for one in found for key, value in one.items()}
    more = steady("step_s", [one["step_time"] for one in found if "step_time" in one])
    if last.get("num_tokens") and last.get("train_runtime"):
        note = "num_tokens by train_runtime, of the whole run; without padding"
        more.append(Reading("tokens_per_s", last["num_tokens"] / last["train_runtime"], note=note))
    return hf_trainer.of_trainer("TRL", lines, found, more)
