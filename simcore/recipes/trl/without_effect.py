"""Keys of TRL's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.huggingface.without_effect import TRAINER
from simcore.recipes.rows import Idle, Row
from simcore.recipes.trl.grpo.releases import OF_REWARDS

__all__ = ["OF_SCRIPTS", "WITHOUT_EFFECT"]

OF_SCRIPTS: Final = frozenset({
    "dataset_mixture", "dataset_mixer", "dataset_splits", "dataset_configs", "chat_template", "system_prompt",
    "benchmarks", "callbacks", "hub_model_revision", "overwrite_hub_revision", "push_to_hub_revision",
    "wandb_entity", "wandb_project", "wandb_run_group", "preprocessing_num_workers", "auto_insert_empty_system_msg",
    *OF_REWARDS})
"""Arguments that scripts around TRL's trainers add: open-r1 src/open_r1/configs.py, alignment-handbook src/alignment/
configs.py. `trl sft` stops at them."""

WITHOUT_EFFECT: Final[tuple[Row, ...]] = (
    *TRAINER,
    Idle(("env.*",), "how ranks are started"),
    Idle(("ignore_bias_buffers",), "read by `trl dpo` alone (TRL 1.16.0 scripts/dpo.py)"),
    Idle(("dataset_*", "datasets", "datasets.*", "streaming", "test_split_size", "shuffle_dataset",
          "completion_only_loss", "assistant_only_loss"),
         "which samples are read, and which tokens count"),
    Idle(tuple(f"{name}{below}" for name in sorted(OF_SCRIPTS) for below in ("", ".*")),
         "data, prompts and logs of a script around the trainer (open-r1, alignment-handbook)"),
    Idle(("chat_template_path", "eos_token", "pad_token"), "which tokens a text becomes"),
)
