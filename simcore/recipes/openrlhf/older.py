"""Names that arguments of OpenRLHF had before 0.10.2, by those of today (0.8.9 and 0.11.0 `openrlhf/cli/`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["OLDER", "OLDER_PAIRS", "OLDER_PPO"]

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

OLDER_PAIRS: Final[Mapping[str, str]] = {
    "beta": "model.beta", "ipo": "model.ipo_enable", "label_smoothing": "model.label_smoothing",
    "nll_loss_coef": "model.nll_loss_coef", "ref_pretrain": "ref.model_name_or_path", "ref_offload": "ref.offload",
    "prompt_key": "data.prompt_key", "chosen_key": "data.chosen_key", "rejected_key": "data.rejected_key",
    "loss": "model.loss_type", "compute_fp32_loss": "model.compute_fp32_loss_enable",
    "margin_loss": "model.margin_loss_enable", "value_head_prefix": "ds.value_head_prefix"}
"""The same of `train_dpo` and `train_rm`, beside those of all trainers."""

OLDER_PPO: Final[Mapping[str, str]] = {
    "actor_learning_rate": "actor.adam.lr", "actor_num_gpus_per_node": "actor.num_gpus_per_node",
    "actor_num_nodes": "actor.num_nodes", "adam_betas": "actor.adam.betas", "advantage_estimator":
    "algo.advantage.estimator", "agent_func_path": "train.agent_func_path", "async_queue_size":
    "train.async_queue_size", "async_train": "train.async_enable", "aux_loss_coef": "actor.aux_loss_coef",
    "colocate_actor_ref": "train.colocate_actor_ref", "colocate_all_models": "train.colocate_all",
    "colocate_critic_reward": "train.colocate_critic_reward", "critic_learning_rate": "critic.adam.lr",
    "critic_num_gpus_per_node": "critic.num_gpus_per_node", "critic_num_nodes": "critic.num_nodes",
    "critic_pretrain": "critic.model_name_or_path", "deepspeed_enable_sleep": "ds.enable_sleep", "dual_clip":
    "actor.dual_clip", "dynamic_filtering": "algo.dynamic_filtering_enable", "dynamic_filtering_reward_range":
    "algo.dynamic_filtering_range", "ema_beta": "train.ema_beta", "enable_ema": "train.enable_ema",
    "enable_prefix_caching": "vllm.enable_prefix_caching", "enable_vllm_is_correction":
    "algo.advantage.is_correction_enable", "enforce_eager": "vllm.enforce_eager", "entropy_loss_coef":
    "actor.entropy_coef", "eps_clip": "actor.eps_clip", "eps_clip_low_high": "actor.eps_clip_low_high",
    "eval_n_samples_per_prompt": "eval.n_samples_per_prompt", "eval_temperature": "eval.temperature",
    "freezing_actor_steps": "critic.freezing_steps", "gamma": "algo.advantage.gamma", "gradient_checkpointing":
    "actor.gradient_checkpointing_enable", "gradient_checkpointing_use_reentrant":
    "actor.gradient_checkpointing_reentrant", "init_kl_coef": "algo.kl.init_coef", "kl_estimator":
    "algo.kl.estimator", "kl_horizon": "algo.kl.horizon", "kl_target": "algo.kl.target", "l2":
    "actor.adam.weight_decay", "label_key": "data.label_key", "lambd": "algo.advantage.lambd", "lr_scheduler":
    "actor.lr_scheduler", "lr_warmup_ratio": "actor.lr_warmup_ratio", "max_norm": "actor.max_norm",
    "micro_rollout_batch_size": "rollout.micro_batch_size", "n_samples_per_prompt":
    "rollout.n_samples_per_prompt", "no_advantage_std_norm": "algo.advantage.no_std_norm", "normalize_reward":
    "reward.normalize_enable", "num_episodes": "train.num_episodes", "overlong_buffer_len":
    "reward.overlong_buffer_len", "overlong_penalty_factor": "reward.overlong_penalty_factor", "policy_loss_type":
    "actor.policy_loss_type", "pretrain": "actor.model_name_or_path", "prompt_data": "data.prompt_dataset",
    "prompt_data_probs": "data.prompt_probs", "prompt_split": "data.prompt_split", "ref_num_gpus_per_node":
    "ref.num_gpus_per_node", "ref_num_nodes": "ref.num_nodes", "remote_rm_url": "reward.remote_url",
    "reward_clip_range": "reward.clip_range", "reward_num_gpus_per_node": "reward.num_gpus_per_node",
    "reward_num_nodes": "reward.num_nodes", "reward_pretrain": "reward.model_name_or_path", "rollout_batch_size":
    "rollout.batch_size", "rollout_max_tokens_per_gpu": "rollout.max_tokens_per_gpu", "save_value_network":
    "critic.save_value_network", "temperature": "rollout.temperature", "top_p": "rollout.top_p",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu", "use_dynamic_batch": "train.dynamic_batch_enable",
    "use_kl_loss": "algo.kl.use_loss", "value_clip": "critic.value_clip", "value_head_prefix":
    "ds.value_head_prefix", "vllm_enable_sleep": "vllm.enable_sleep", "vllm_generate_batch_size":
    "rollout.vllm_generate_batch_size", "vllm_gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "vllm_is_truncated_threshold": "algo.advantage.is_correction_threshold", "vllm_num_engines":
    "vllm.num_engines", "vllm_sync_backend": "vllm.sync_backend", "vllm_sync_with_ray": "vllm.sync_with_ray",
    "vllm_tensor_parallel_size": "vllm.tensor_parallel_size"}
"""The same of `train_ppo_ray`, where they differ from other trainers' or are its own; lengths stay as they are."""
