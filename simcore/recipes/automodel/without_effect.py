"""Keys of Automodel's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.rows import Idle, Row, Unmodelled

__all__ = ["OFF_BY_NULL", "WITHOUT_EFFECT"]


def _keys(block: str, names: str) -> tuple[str, ...]:
    return tuple(f"{block}.{name}" for name in names.split())


OFF_BY_NULL: Final = (
    "peft", "packed_sequence", "compile", "fp8", "quantization", "qat", "neftune", "lr_scheduler", "clip_grad_norm",
    "wandb", "mlflow", "comet", "checkpoint", "moe_metrics", "freeze_config", "dataloader", "benchmark", "slurm",
    "skypilot", "ci")
"""Blocks that null leaves out (0.7.0 `recipes/_typed_config.py`, `recipes/llm/train_ft.py`: `cfg.get(..., None)`)."""
# Blocks that Automodel reads key by key, so that another key is an error there as well (`recipes/_typed_config.py`):
_LEARNING_RATE: Final = _keys("lr_scheduler", """
    _target_ lr_warmup_steps lr_decay_steps lr_decay_style init_lr max_lr min_lr start_wd end_wd wd_incr_steps
    wd_incr_style use_checkpoint_opt_param_scheduler override_opt_param_scheduler wsd_decay_steps lr_wsd_decay_style""")
_FILES: Final = _keys("checkpoint", """
    _target_ enabled checkpoint_dir model_save_format model_cache_dir model_repo_id save_consolidated is_peft is_async
    model_state_dict_keys wait_for_staging cpu_offload restore_from allow_legacy_pickle_restore staging_dir
    dequantize_base_checkpoint original_model_root_dir skip_task_head_prefixes_for_base_model diffusers_compatible
    single_rank_consolidation best_metric_key legacy_paramwrapper_layout consolidation_timeout_minutes
    max_recent_checkpoints v4_compatible""")
_LENGTH: Final = _keys("step_scheduler", """
    _target_ num_epochs max_steps ckpt_every_steps save_checkpoint_every_epoch validate_on_checkpoint val_every_steps
    log_remote_every_steps loss_average_window_steps start_step start_epoch preemption_signal dp_size""")
_LOADER: Final = _keys("dataloader", """
    _target_ shuffle shuffle_buffer_size num_workers pin_memory persistent_workers prefetch_factor drop_last
    dataloader_type""")
WITHOUT_EFFECT: Final[tuple[Row, ...]] = (
    Idle(("seed", "rng.*", "ranked"), "random numbers"),
    Idle(("wandb.*", "mlflow.*", "comet.*", "nvtx", "benchmark.*", "logging.*", "moe_metrics.*"),
        "logging and measuring"),
    Idle(("ci.*",), "Automodel's own tests"),
    Idle(("skypilot.*", "slurm.*"), "the launcher"),
    Idle(_keys("dist_env", "backend timeout_minutes"), "how ranks find each other"),
    Idle(("parallelizer.*", "autopipeline.*", "distributed_config.*"), "nothing reads this block: it is that of "
         "releases before the block distributed"),
    Idle(_LEARNING_RATE, "values of the learning rate"),
    Idle(("clip_grad_norm.*",), "the norm is taken and gradients are multiplied whatever it says (null: 1.0): both "
         "are timed"),
    Idle(_FILES, "reading and writing files: not part of a step"),
    Idle(("validation_*", "_validation_*", "tool_call_eval.*"), "validation: not part of a step"),
    Idle(_LENGTH, "length of the run: not part of a step"),
    Idle(("step_scheduler.gc_every_steps",), "the host's garbage, which is collected between steps"),
    Idle(("tokenizer.*", "_*_chat_template"), "which tokens a text becomes"),
    Idle(("dataset.*",), "which samples are read; their length is training.seq_len"),
    Unmodelled(("dataloader.group_by_length",), "batches of sequences that are about as long as each other"),
    Idle((*_LOADER, "dataloader.collate_fn", "dataloader.collate_fn.*", "longalign"),
         "how samples are read, on the host"),
    Idle(("prewarm.*", "embedding_row_repair.*"), "before the first step"),
)
