"""Keys of TRL's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.huggingface.without_effect import TRAINER
from simcore.recipes.rows import Idle, Row

__all__ = ["WITHOUT_EFFECT"]

WITHOUT_EFFECT: Final[tuple[Row, ...]] = (
    *TRAINER,
    Idle(("env.*",), "how ranks are started"),
    Idle(("ignore_bias_buffers",), "read by `trl dpo` alone (TRL 1.16.0 scripts/dpo.py)"),
    Idle(("dataset_*", "datasets", "datasets.*", "streaming", "test_split_size", "shuffle_dataset",
          "completion_only_loss", "assistant_only_loss"),
         "which samples are read, and which tokens count"),
    Idle(("chat_template_path", "eos_token", "pad_token"), "which tokens a text becomes"),
)
