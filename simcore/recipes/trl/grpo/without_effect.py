"""Keys of GRPO's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.rows import Idle, Off, Row, Unmodelled

__all__ = ["NAMES", "WITHOUT_EFFECT"]

_NUMBERS: Final = (
    "epsilon", "epsilon_high", "delta", "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos",
    "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "importance_sampling_level", "mask_truncated_completions",
    "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_cap", "off_policy_mask_threshold", "use_bias_correction_kl", "top_entropy_quantile",
    "entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta",
    "entropy_target")
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs",
                    "chat_template_kwargs", "vllm_structured_outputs_regex")
_REWARDS: Final = ("reward_funcs", "reward_weights", "scale_rewards", "multi_objective_aggregation")
_SYNCED: Final = ("ref_model_mixup_alpha", "ref_model_sync_steps")
_LOGGED: Final = ("log_completions", "log_multimodal", "log_unique_prompts", "num_completions_to_print",
                  "log_completions_hub_repo", "num_generations_eval")
_REACHED: Final = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout",
                   "vllm_group_port")
_OLDER: Final = ("vllm_guided_decoding_regex", "wandb_log_unique_prompts")
WITHOUT_EFFECT: Final[tuple[Row, ...]] = (
    Idle(_NUMBERS, "numbers of the loss: of one number a token and less"),
    Idle(tuple(f"{name}{below}" for name in _SAMPLING for below in ("", ".*")), "which tokens are drawn"),
    Idle(tuple(f"{name}{below}" for name in _REWARDS for below in ("", ".*")),
         "functions that give rewards, which take no memory of a GPU, and how these are scaled"),
    Idle(_SYNCED, "how much, and how often, a reference model takes of the policy"),
    Idle(_LOGGED, "what is logged"),
    Idle(_REACHED, "where a server is reached"),
    Idle(("disable_dropout",), "numbers of layers"),
    Off("use_liger_loss", "Liger's own loss of GRPO"),
    Idle(_OLDER, "which tokens are drawn, and what is logged"),
    Unmodelled(("max_tool_calling_iterations",), "turns in which tools are called: an answer is one turn"),
    Off("cast_lm_head_to_fp32", "a head in fp32"),
)
"""Rows of the arguments of `trainer/grpo_config.py` that no other module reads."""
NAMES: Final = frozenset((
    *_NUMBERS, *_SAMPLING, *_REWARDS, *_SYNCED, *_LOGGED, *_REACHED, "disable_dropout", "max_tool_calling_iterations",
    "cast_lm_head_to_fp32", "num_generations", "max_completion_length", "ds3_gather_for_generation",
    "pad_to_multiple_of", "generation_batch_size", "steps_per_generation", "cache_implementation", "use_vllm",
    "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_gpu_memory_utilization", "vllm_max_model_length",
    "vllm_tensor_parallel_size", "beta", "num_iterations", "loss_type", "sync_ref_model",
    "vllm_importance_sampling_correction", "use_transformers_continuous_batching",
    "transformers_continuous_batching_config", "use_transformers_paged", "reward_model_name_or_path", *_OLDER,
    "use_liger_loss", "max_prompt_length"))
"""Arguments of GRPO that those of `trl sft` are not."""
