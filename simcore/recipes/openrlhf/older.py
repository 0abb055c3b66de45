"""Names that arguments of OpenRLHF had before 0.10.2, by those of today (0.8.9 and 0.11.0 `openrlhf/cli/`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["OLDER"]

OLDER: Final[Mapping[str, str]] = {
    "pretrain": "model.model_name_or_path", "max_len": "data.max_len", "dataset": "data.dataset",
    "dataset_probs": "data.dataset_probs", "dataset_split": "data.dataset_split", "max_samples": "data.max_samples",
    "multiturn": "data.multiturn", "input_key": "data.input_key", "output_key": "data.output_key",
    "input_template": "data.input_template", "apply_chat_template": "data.apply_chat_template",
    "tokenizer_chat_template": "data.tokenizer_chat_template", "disable_fast_tokenizer": "data.disable_fast_tokenizer",
    "dataloader_num_workers": "data.dataloader_num_workers", "eval_dataset": "eval.dataset",
    "eval_split": "eval.split", "eval_steps": "eval.steps", "save_path": "ckpt.output_dir",
    "save_steps": "ckpt.save_steps", "save_hf_ckpt": "ckpt.save_hf", "disable_ds_ckpt": "ckpt.disable_ds",
    "ckpt_path": "ckpt.path", "max_ckpt_num": "ckpt.max_num", "max_ckpt_mem": "ckpt.max_mem",
    "load_checkpoint": "ckpt.load_enable", "logging_steps": "logger.logging_steps", "use_wandb": "logger.wandb.key",
    "wandb_org": "logger.wandb.org", "wandb_group": "logger.wandb.group", "wandb_project": "logger.wandb.project",
    "wandb_run_name": "logger.wandb.run_name", "use_tensorboard": "logger.tensorboard_dir",
    "micro_train_batch_size": "train.micro_batch_size", "train_batch_size": "train.batch_size",
    "max_epochs": "train.max_epochs", "seed": "train.seed", "full_determinism": "train.full_determinism_enable",
    "gradient_checkpointing": "model.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "model.gradient_checkpointing_reentrant",
    "aux_loss_coef": "model.aux_loss_coef", "pretrain_mode": "model.pretrain_mode_enable",
    "zero_stage": "ds.zero_stage", "param_dtype": "ds.param_dtype", "zpg": "ds.zpg", "adam_offload": "ds.adam_offload",
    "attn_implementation": "ds.attn_implementation", "use_liger_kernel": "ds.use_liger_kernel",
    "grad_accum_dtype": "ds.grad_accum_dtype", "overlap_comm": "ds.overlap_comm", "deepcompile": "ds.deepcompile",
    "use_ds_universal_ckpt": "ds.use_universal_ckpt", "ds_tensor_parallel_size": "ds.tensor_parallel_size",
    "ring_attn_size": "ds.ring_attn_size", "ring_head_stride": "ds.ring_attn_head_stride",
    "load_in_4bit": "ds.load_in_4bit", "lora_rank": "ds.lora.rank", "lora_alpha": "ds.lora.alpha",
    "lora_dropout": "ds.lora.dropout", "target_modules": "ds.lora.target_modules",
    "packing_samples": "ds.packing_samples", "learning_rate": "adam.lr", "adam_betas": "adam.betas",
    "l2": "adam.weight_decay"}
"""Names of today by the older ones; those of `bf16` and `flash_attn` say other things and stay."""
