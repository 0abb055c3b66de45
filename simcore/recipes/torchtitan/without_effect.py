"""Keys of job configurations on which nothing depends that is simulated, each with the reason, and switches."""

from __future__ import annotations

from typing import Final

from simcore.recipes.rows import Idle, Off, Row

__all__ = ["BLOCKS", "SWITCHES", "WITHOUT_EFFECT"]


def _keys(block: str, names: str) -> tuple[str, ...]:
    return tuple(f"{block}.{name}" for name in names.split())


BLOCKS: Final = (
    "job", "profiling", "metrics", "model", "optimizer", "lr_scheduler", "training", "training.dataloader",
    "parallelism", "checkpoint", "activation_checkpoint", "compile", "float8", "quantize", "quantize.linear",
    "quantize.linear.float8", "quantize.linear.mx", "quantize.grouped_mm", "quantize.grouped_mm.float8",
    "quantize.grouped_mm.mx", "comm", "memory_estimation", "fault_tolerance", "experimental", "validation",
    "validation.dataloader", "debug")
"""Tables of a job configuration, which may be empty."""
SWITCHES: Final[tuple[Row, ...]] = (
    Off("fault_tolerance.enable", "torchft"),
    Off("memory_estimation.enable", "a run that only estimates memory"),
)
"""Blocks that change the whole run where they are on."""
WITHOUT_EFFECT: Final[tuple[Row, ...]] = (
    Idle(_keys("job", "config_file dump_folder description print_config print_args save_config_file "
                      "use_for_integration_test"), "names, files and messages"),
    Idle(_keys("profiling", "enable_profiling save_traces_folder profile_freq profiler_active profiler_warmup "
                            "enable_memory_snapshot save_memory_snapshot_folder"), "measuring"),
    Idle(_keys("metrics", "log_freq enable_tensorboard disable_color_printing save_tb_folder save_for_all_ranks "
                          "enable_wandb"), "logging"),
    Idle(_keys("lr_scheduler", "warmup_steps total_steps decay_ratio decay_type min_lr_factor lr_min"),
         "values of the learning rate"),
    Idle(_keys("training", "dataset dataset_path dataloader.num_workers dataloader.persistent_workers "
                           "dataloader.pin_memory dataloader.prefetch_factor"),
         "which samples are read, and how, on the host"),
    Idle(_keys("training", "steps gc_freq gc_debug"), "length of the run, and Python's own memory"),
    Idle(("training.max_norm",), "the norm is taken and gradients are multiplied whatever it says (b5bcd76c "
         "distributed/utils.py clip_grad_norm_): both are timed"),
    Idle(_keys("checkpoint", "folder interval initial_load_model_only initial_load_in_hf_quantized "
                             "last_save_model_only last_save_model_weights_only model_weights_only export_dtype "
                             "keep_latest_k load_step exclude_from_loading enable_first_step_checkpoint"),
         "which files are read and written, and when: not part of a step"),
    Idle(_keys("validation", "enable dataset dataset_path local_batch_size seq_len freq steps dataloader.num_workers "
                             "dataloader.persistent_workers dataloader.pin_memory dataloader.prefetch_factor"),
         "validation: not part of a step"),
    Idle(_keys("comm", "init_timeout_seconds train_timeout_seconds trace_buf_size save_traces_folder "
                       "save_traces_file_prefix"), "timeouts and traces"),
    Idle(("debug.seed", "training.seed"), "random numbers"),
    Idle(("debug.moe_force_load_balance",), "which experts tokens go to is what training.routing says"),
    Idle(("debug.deterministic_warn_only",), "messages of deterministic kernels"),
    Idle(("memory_estimation.disable_fake_mode",), "of a run that only estimates memory"),
    Idle(_keys("fault_tolerance", "process_group process_group_timeout_ms replica_id group_size min_replica_size "
                                  "semi_sync_method sync_steps num_fragments"), "torchft is off"),
)
