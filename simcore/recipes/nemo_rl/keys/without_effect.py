"""Keys of NeMo RL's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.rows import Idle

__all__ = ["IDLE_BLOCKS", "WITHOUT_EFFECT"]

IDLE_BLOCKS: Final = ("logger", "checkpointing", "env", "data", "reward_penalties")
"""Blocks at the top of a recipe of which no key has an effect."""
_VALUES: Final = ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")

WITHOUT_EFFECT: Final = (
    Idle(("logger.*",), "logging"),
    Idle(("checkpointing.*",), "reading and writing files: not part of a step"),
    Idle(("data.*",), "which samples are read; their length is training.seq_len"),
    Idle(("env.*", "reward_penalties.*"), "environments and rewards: on the host"),
    Idle(("sif_dir",), "a folder that files of environments are named by"),
    Idle(("data_plane", "data_plane.*"), "settings of what `enabled` switches"),
    Idle(("policy.tokenizer.audio*", "policy.tokenizer.video*"), "inputs of other kinds than text"),
    Idle(("policy.tokenizer.*",), "which tokens a text becomes"),
    Idle(("policy.generation_batch_size",), "of the engine of transformers alone"),
    Idle(("policy.scheduler.*", "policy.scheduler"), "values of the learning rate"),
    Idle(("policy.reward_model_cfg.*", "policy.draft.*", "policy.router_replay.*"), "settings of what `enabled` "
         "switches"),
    Idle(("policy.dequantize_base_checkpoint", "policy.pretrained_checkpoint.*"), "before the first step"),
    Idle(tuple(f"policy.optimizer.kwargs.{name}" for name in ("lr", "weight_decay", "betas", "eps")),
         "values, not tensors"),
    Idle(tuple(f"policy.megatron_cfg.optimizer.{name}" for name in _VALUES), "values, not tensors"),
    Idle(("cluster.master_port_range_*", "cluster.segment_size", "cluster.topology.*"), "how ranks are placed by Ray"),
)
