"""Keys of axolotl's recipes on which nothing depends that is simulated, each with the reason."""

from __future__ import annotations

from typing import Final

from simcore.recipes.huggingface.trainer import UNUSED
from simcore.recipes.huggingface.without_effect import ALIKE, REST_OF_ACCELERATOR
from simcore.recipes.rows import Idle, Row, Says, Unmodelled

__all__ = ["WITHOUT_EFFECT"]

WITHOUT_EFFECT: Final[tuple[Row, ...]] = (
    Says("accelerator_config.gradient_accumulation_kwargs.num_steps", "", idle={1: "the default"}, words={None: None},
         what="microbatches of a step by accelerate:"),
    *REST_OF_ACCELERATOR,
    Idle(("wandb_*", "mlflow_*", "comet_*", "use_wandb", "use_mlflow", "use_comet", "use_tensorboard", "use_swanlab",
          "swanlab_*", "trackio_*", "use_trackio", "use_otel_metrics", "otel_*", "logging_steps", "profiler_*",
          "include_tkps", "hf_mlflow_log_artifacts", "include_tokens_per_second"), "logging and measuring"),
    Idle(("datasets.*", "datasets", "test_datasets*", "pretraining_dataset*", "pretraining_sample_concatenation",
          "dataset_*", "dataloader_*", "shuffle_*", "skip_prepare_dataset", "push_dataset_to_hub", "streaming*",
          "min_sample_len", "total_num_tokens", "curriculum_sampling", "remove_unused_columns", "train_on_inputs",
          "excess_length_strategy"), "which samples are read"),
    Idle(("tokenizer_*", "special_tokens", "chat_template*",
          "default_system_message", "eot_tokens", "added_tokens_overrides"), "which tokens a text becomes"),
    Unmodelled(("special_tokens.*", "tokens", "tokens.*"),
               "a row more of the embedding for each that the tokenizer does not have"),
    Idle(("learning_rate", "lr_*", "cosine_*", "warmup_*", "weight_decay", "adam_*", "eta_min",
          "seed", "torchdistx_path", "embedding_lr*", "loraplus_*"), "numbers of the update"),
    Idle(("debug",), "messages"),
    Idle(("loss_watchdog_*",), "when a run whose loss grows is stopped"),
    Idle(("num_epochs", "max_steps", "save_*", "saves_per_epoch", "output_dir", "resume_from_checkpoint",
          "auto_resume_from_checkpoints", "early_stopping_patience", "hub_*", "hf_use_auth_token", "load_best_*",
          "fsdp_final_state_dict_type"),
         "length of the run and its files: not part of a step"),
    Idle(("val_set_size", "eval_*", "evals_per_epoch", "evaluation_strategy", "do_causal_lm_eval",
          "do_bench_eval"), "evaluation: not part of a step"),
    Idle(("base_model_ignore_patterns", "revision_of_model", "model_revision", "strict",
          "low_cpu_mem_usage", "is_*_derived_model", "tokenizer", "local_rank", "ddp",
          "ddp_timeout", "ray_run_name", "resources_per_worker.*", "experimental_skip_move_to_device",
          "device_map", "device_map.*"),
         "which files are read, and who starts the ranks"),
    Unmodelled(("group_by_length",), ALIKE),
    Unmodelled(("ddp_find_unused_parameters",), UNUSED),
    Idle(("test_value",), "a key of an example of axolotl's, which nothing in axolotl reads"),
    Unmodelled(("cls_model_config",), "transformers' class that reads the model's configuration: it is read as its "
               "model_type says"),
    Unmodelled(("ddp_broadcast_buffers",), "buffers are a few hundred bytes, which nothing sends here"),
    Idle(("gptq_*", "lora_model_dir", "lora_fan_in_fan_out"), "settings of what is not asked for, or of files"),
    Idle(("selective_checkpointing.*", "chunked_cross_entropy_*", "eaft_*", "tiled_mlp_*", "pose_*",
          "scaling_softmax_*", "fp32_norm_classes", "lisa_*", "heads_k_stride", "ring_attn_func", "qgalore_*",
          "dion_*", "jagged_restart_*", "fp8_enable_fsdp_float8_all_gather"),
         "settings of what is not asked for, or is refused"),
    Idle(("gradio_*", "generat*", "num_generation_samples", "merge_method", "bench_*", "metric_for_best_model",
          "greater_is_better", "dynamic_checkpoint.*", "num_dataset_shards_to_save"), "beside the training"),
    Idle(("trl.*", "rl_*", "dpo_*", "kto_*", "orpo_*", "simpo_*", "cpo_*", "ebft.*", "vllm.*", "max_prompt_len",
          "precompute_ref_log_probs"), "of training by rl: not asked for, refused, or read with its kind"),
    Idle(("lm_eval_*", "nemo_gym_*", "kd_*", "spectrum_*", "grokfast_*", "hatchery", "hatchery.*", "dense_mixer",
          "expert_backend", "nonexpert_quantization", "moe_grouped_backend", "moe_dequant_chunk_size", "moe_bnb_fast",
          "dsv4_*", "use_dsv4_kernels", "use_glm_dsa_kernels", "gemma4_fp8_*", "gemma4_nf4_*", "nvfp4_merge_*"),
         "its plugin (integrations/) is not loaded, or is refused"),
    Idle(("relora", "relora_*"), "no adapters are asked for"),
    Idle(("merge_lora",), "of the command that merges adapters"),
    Unmodelled(("liger_use_token_scaling",), "losses that are scaled by the tokens' probabilities"),
    Idle(("quantization.*",), "of the command that quantises a trained model"),
    Idle(("image_size", "image_resize_algorithm"), "no processor is loaded"),
    Idle(("processor_kwargs", "processor_kwargs.*"),
         "inputs of other kinds than text"),
    Idle(("mean_resizing_embeddings",), "first values of rows"),
    Idle(("role_boundaries", "role_boundaries.*"), "which tokens count"),
    Idle(("device", "world_size", "is_preprocess", "preprocess_iterable", "total_supervised_tokens",
          "axolotl_config_path"), "the run sets it itself"),
    Unmodelled(("pad_to_multiple_of",), "samples are counted at sequence_len, without more padding"),
    Unmodelled(("torch_empty_cache_steps",), "the allocator's cache is emptied every so many steps"),
    Unmodelled(("gc_steps", "gc_collect_steps"), "garbage is collected every so many steps"),
    Unmodelled(("resize_token_embeddings_to_32x",), "the vocabulary is that of the configuration"),
)
