"""Arguments of transformers' Trainer on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.rows import Idle, Row, Says, Unmodelled

__all__ = ["ALIKE", "REST_OF_ACCELERATOR", "TRAINER"]

ALIKE: Final = "batches of sequences that are about as long as each other"

REST_OF_ACCELERATOR: Final[tuple[Row, ...]] = (
    Idle(("accelerator_config.non_blocking",), "how batches are copied to the device"),
    Idle(("accelerator_config.use_configured_state",), "accelerate's state, which the Trainer makes in any case"),
    Idle(("accelerator_config.gradient_accumulation_kwargs.*",), "when learning rates are stepped, and "
         "reductions at the end of the data"),
    Idle(("accelerator_config.*",), "which samples a rank reads"),
)
"""Settings of accelerate's batches but for those that others read before (`trainer.ACCELERATOR`, `num_steps`)."""
TRAINER: Final[tuple[Row, ...]] = (
    *REST_OF_ACCELERATOR,
    Idle(("local_rank",), "how ranks are started"),
    Idle(("disable_tqdm", "skip_memory_metrics"), "messages, and measuring of memory"),
    Says("debug", "", "text", {None: None}, {"": "off"}, "a check of every module, by"),
    Unmodelled(("include_num_input_tokens_seen",), "tokens that ranks count together after each microbatch, for which "
               "the host waits: not timed", ("no",)),
    Idle(("include_for_metrics", "include_inputs_for_metrics"), "evaluation: not part of a step"),
    Idle(("logging_*", "log_*", "report_to", "run_name", "project", "trackio_*", "include_*"),
         "logging and measuring"),
    Idle(("dataloader_*", "remove_unused_columns", "label_names", "length_column_name",
          "ignore_data_skip"), "which samples are read, and how, on the host"),
    Unmodelled(("train_sampling_strategy",), ALIKE, ("random", "sequential")),
    Idle(("learning_rate", "lr_*", "warmup_*", "weight_decay", "adam_*", "seed", "data_seed"),
         "numbers of the update"),
    Idle(("num_train_epochs", "max_steps", "save_*", "output_dir", "overwrite_output_dir", "resume_from_checkpoint",
          "load_best_*", "metric_for_*", "greater_is_better", "hub_*", "push_to_hub", "enable_jit_checkpoint",
          "restore_callback_*", "do_train", "do_predict"), "length of the run and its files: not part of a step"),
    Idle(("do_eval", "eval_*", "per_device_eval_*", "evaluation_strategy", "prediction_loss_only", "batch_eval_metrics",
          "bf16_full_eval", "fp16_full_eval"), "evaluation: not part of a step"),
)
