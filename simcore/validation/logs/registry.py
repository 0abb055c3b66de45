"""All formats of training logs, and which one a text is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simcore.validation.logs import (
    automodel,
    axolotl,
    deepspeed,
    hf_trainer,
    megatron,
    nemo_rl,
    torchtitan,
    trl,
    verl,
)
from simcore.validation.logs.lines import lines_with, plain_text
from simcore.validation.logs.reading import Log

__all__ = ["FORMATS", "Format", "read_log"]


@dataclass(frozen=True)
class Format:
    """One format of logs. `example`: a piece of a line of it, for messages; `words`: one of them is in every line.

    `read`: numbers of the lines that have such a word, None if they are not of this format. `is_trainer`: it is the
    Trainer of transformers, which may run DeepSpeed inside.
    """

    example: str
    words: tuple[str, ...]
    read: Callable[[Sequence[str]], Log | None]
    is_trainer: bool = False


FORMATS: Final = (
    Format("NeMo RL (Total step time: ..s)", nemo_rl.WORDS, nemo_rl.read),
    Format("verl (step:1 - .. - timing_s/step:..)", verl.WORDS, verl.read),
    Format("Megatron ([Rank 0] (after 1 iterations) memory (MB) | .., elapsed time per iteration (ms): ..)",
           megatron.WORDS, megatron.read),
    Format("torchtitan (step: 1 .. memory: 12.3GiB(..))", torchtitan.WORDS, torchtitan.read),
    Format("Automodel (step 1 | .. | mem 12.34 GiB | tps ..)", automodel.WORDS, automodel.read),
    Format("axolotl ({.. 'memory/max_allocated (GiB)': ..})", axolotl.WORDS, axolotl.read, is_trainer=True),
    Format("TRL ({.. 'num_tokens': ..})", trl.WORDS, trl.read, is_trainer=True),
    Format("the Hugging Face Trainer ({'loss': ..})", hf_trainer.WORDS, hf_trainer.read, is_trainer=True),
    Format("DeepSpeed (MA 1.2 GB Max_MA .., CurrSamplesPerSec=..)", deepspeed.WORDS, deepspeed.read),
)
"""Formats in the order in which they are tried: programs before those that they run inside."""


def read_log(text: str) -> Log | None:
    """Memory and speed in the text of a training log; None if no line is of a known format.

    The first format that has numbers counts; DeepSpeed's are added to those of a Trainer that runs it.
    """
    plain = plain_text(text)
    for form in FORMATS:
        log = form.read(lines_with(plain, form.words))
        if log is not None and (log.readings or log.batch):
            return _joined(log, deepspeed.read(lines_with(plain, deepspeed.WORDS))) if form.is_trainer else log
    return None


def _joined(log: Log, inner: Log | None) -> Log:
    """Log of a Trainer with the quantities that only the engine inside it printed."""
    if inner is None:
        return log
    known = {reading.of for reading in log.readings}
    more = tuple(reading for reading in inner.readings if reading.of not in known)
    return replace(log, trainer=f"{log.trainer}, {inner.trainer}", readings=(*log.readings, *more))
