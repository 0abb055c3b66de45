"""Keys of LLaMA-Factory's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.huggingface.without_effect import TRAINER
from simcore.recipes.rows import Idle, Off, Row

__all__ = ["WITHOUT_EFFECT"]

WITHOUT_EFFECT: Final[tuple[Row, ...]] = (
    *TRAINER,
    Idle(("dataset", "dataset_dir", "eval_dataset", "media_dir", "streaming", "buffer_size", "mix_strategy",
          "interleave_probs", "overwrite_cache", "preprocessing_batch_size", "preprocessing_num_workers",
          "max_samples", "val_size", "tokenized_path", "data_shared_file_system", "disable_shuffling",
          "train_on_prompt", "mask_history", "ignore_pad_token_for_loss"),
         "which samples are read, and which tokens count"),
    Idle(("visual_inputs",), "a key of releases 0.6 to 0.8: whether a model reads images, its class says"),
    Idle(("template", "tool_format", "default_system", "enable_thinking", "preserve_thinking"),
         "which tokens a text becomes"),
    Idle(("image_do_pan_and_scan", "video_*", "audio_*", "crop_to_patches", "use_audio_in_video"),
         "about images and sound"),
    Idle(("plot_loss", "compute_accuracy", "use_swanlab", "swanlab_*",
          "enable_torch_profiler", "profiler_*", "profile_modules"), "logging and measuring"),
    Idle(("predict_with_generate", "generation_*", "do_sample", "temperature", "top_p", "top_k", "num_beams",
          "max_length", "max_new_tokens", "repetition_penalty", "length_penalty", "skip_special_tokens"),
         "generating: not part of a step"),
    Idle(("early_stopping_steps",), "when the run ends"),
    Idle(("export_*", "vllm_*", "sglang_*", "infer_backend", "infer_dtype", "use_kv_cache"),
         "inference and export: not part of a step"),
    Idle(("ray_*", "ray_run_name", "ray_storage_path", "ray_init_kwargs", "ray_init_kwargs.*"),
         "how Ray starts ranks, and its files"),
    Idle(("master_addr", "master_port", "resources_per_worker", "resources_per_worker.GPU", "resources_per_worker.CPU",
          "placement_strategy"), "how ranks are started"),
    Idle(("pref_*", "dpo_*", "kto_*", "simpo_*", "ppo_*", "ref_model*", "reward_model*", "ld_alpha"),
         "of stages that are not asked for"),
    Idle(("liger_kernel_config", "liger_kernel_config.*"), "LLaMA-Factory applies Liger's kernels itself"),
    Idle(("kt_*", "fp8_backend", "megatron_bridge_args", "megatron_bridge_args.*", "hyper_parallel_*"),
         "of what is not asked for"),
    *(Off(name, what) for name, what in (
        ("use_badam", "BAdam"), ("use_adam_mini", "Adam-mini"),
        ("use_muon", "LLaMA-Factory's own Muon (under DeepSpeed its step stops: KeyError 'use_muon')"))),
    Idle(("badam_*",), "of an optimizer that is not asked for, or is refused"),
)
