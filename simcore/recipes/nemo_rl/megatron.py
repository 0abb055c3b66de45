"""Workers of Megatron: block `policy.megatron_cfg`, which trains by Megatron-Bridge.

`models/megatron/setup.py` writes these keys over the configuration that Bridge has for the model; formats are those of
`policy.precision`, gradients are accumulated and reduced in 16 bits unless `grad_reduce_in_fp32` says otherwise.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.megatron.without_effect import COPIES_BESIDE, limit_of_gradients
from simcore.recipes.nemo_rl.experts import read_experts
from simcore.recipes.nemo_rl.keys.dropout import read_dropout
from simcore.recipes.nemo_rl.keys.environment import read_environment
from simcore.recipes.nemo_rl.predictions import read_predictions
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, Unmodelled, key_of, read_rows
from simcore.recipes.world import share_out

__all__ = ["read_megatron"]

_AT: Final = "policy.megatron_cfg"
_DDP: Final = f"{_AT}.distributed_data_parallel_config"
_OPTIMIZER: Final = f"{_AT}.optimizer"
_PEFT: Final = f"{_AT}.peft"
_FP8: Final = f"{_AT}.fp8_cfg"
_SETUP: Final = "models/megatron/setup.py"
_OPTION: Final = "framework_options."
_ROTATION: Final = f"{_OPTION}apply_rope_fusion"
_FLAGS: Final = ("apply_rope_fusion", "bias_activation_fusion", "gradient_accumulation_fusion",
                 "use_fused_weighted_squared_relu")
_ROWS: Final[tuple[Row, ...]] = (
    *(Says(f"{_AT}.{name}", f"{_OPTION}{name}", "flag") for name in _FLAGS),
    Says(f"{_AT}.attention_backend", f"{_OPTION}attention_backend", "text"),
    Says(f"{_AT}.transformer_impl", f"{_OPTION}transformer_impl", "text",
         {"transformer_engine": "transformer_engine", "local": "local"}, what="layers of"),
    Says(f"{_DDP}.overlap_grad_reduce", f"{_OPTION}overlap_grad_reduce", "flag"),
    Says(f"{_DDP}.overlap_param_gather", f"{_OPTION}overlap_param_gather", "flag"),
    Off(f"{_DDP}.use_custom_fsdp", "Megatron-FSDP under NeMo RL"),
    Idle((f"{_DDP}.data_parallel_sharding_strategy",), "of Megatron-FSDP alone"),
    Idle((f"{_DDP}.average_in_collective",), "the worker sets it"),
    Off(f"{_AT}.fine_grained_activation_offloading", "activations that go to the host"),
    Says(f"{_AT}.cuda_graph_impl", "", "text", idle={"none": "nothing is captured"}, words={None: None},
         what="CUDA graphs under NeMo RL:"),
    Idle((f"{_AT}.offload_modules", f"{_AT}.cuda_graph_*"),
         "settings of what is switched off"),
    Idle((f"{_AT}.enabled", f"{_AT}.converter_type", f"{_AT}.force_reconvert_from_hf", f"{_AT}.checkpoint.*",
          f"{_AT}.use_gloo_process_groups", f"{_AT}.train_iters"), "not part of a step"),
    Idle((f"{_AT}.scheduler.*",), "values of the learning rate"),
    Idle((f"{_AT}.moe_per_layer_logging", f"{_AT}.track_moe_metrics"), "what is logged"),
    Idle((f"{_AT}.model_overrides", f"{_AT}.freeze_config", f"{_AT}.env_vars"), "nothing is set"),
    Idle((f"{_AT}.clear_memory_caches_before_refit",), "tables of positions, which are counted for one length"),
    Idle((f"{_AT}.inference_*", f"{_AT}.moe_pad_experts_for_cuda_graph_inference"), "of Megatron's engine alone"),
    Idle((f"{_AT}.first_last_layers_bf16", f"{_AT}.num_layers_at_start_in_bf16", f"{_AT}.num_layers_at_end_in_bf16"),
         "no line of the release reads it"),
    Idle((f"{_AT}.moe_router_bias_update_rate", f"{_AT}.moe_aux_loss_coeff", f"{_AT}.moe_router_enable_expert_bias",
          f"{_AT}.layernorm_epsilon", f"{_AT}.calculate_per_token_loss", f"{_AT}.do_not_average_loss",
          f"{_AT}.cp_normalize", f"{_AT}.scale_loss_by_dp_cp_size"), "values, not tensors"),
    Idle((f"{_AT}.freeze_vision_*", f"{_AT}.freeze_sound_*", f"{_AT}.radio_*"), "the policy has text alone"),
    limit_of_gradients(f"{_OPTIMIZER}.clip_grad"),
    Idle(("policy.max_grad_norm",), "workers of Megatron read optimizer.clip_grad"),
    Idle((f"{_OPTIMIZER}.params_dtype",), "no line of Megatron's optimizers reads it"),
)
_STATES: Final = (
    Says(f"{_OPTIMIZER}.optimizer", "training.optimizer.name", "text", {"adam": "adamw", "sgd": "sgd"},
         what="optimizer"),
    Says(f"{_OPTIMIZER}.use_distributed_optimizer", f"{_OPTION}use_distributed_optimizer", "flag"),
    Says(f"{_OPTIMIZER}.use_precision_aware_optimizer", f"{_OPTION}use_precision_aware_optimizer", "flag"),
)
_ADAPTERS: Final = (
    Says(f"{_PEFT}.dim", "training.lora.rank"),
    Says(f"{_PEFT}.alpha", "training.lora.alpha", "number"),
    Off(f"{_PEFT}.a2a_experimental", "adapters over experts by all-to-all"),
    Says(f"{_PEFT}.lora_dtype", "training.lora.dtype", "text", {"bfloat16": "bf16", "float32": "fp32"},
         {"None": "the base's"}, "adapters in"),
    Idle((f"{_PEFT}.lora_*_init_method",), "first values of adapters"),
)
_MOMENTUM: Final = 0.9
_CHECKED: Final = "NeMo RL 7ea279ab models/megatron/setup.py _validate_dtype_config"
_NOTHING: Final = ("none",)
"""Excluded modules that no module fits."""


def read_megatron(reader: Reader, draft: Draft, gpus: Answer | None, kind: str) -> None:
    """Reads a policy that trains by Megatron on `gpus`; `kind`: sft, dpo or grpo."""
    draft.infer("framework", "megatron", "the worker of Megatron", source=_SETUP)
    draft.infer("framework_version", "main 2026-08-22", "the nearest to Bridge 8c46dc42 of 2026-08-14, a submodule of "
                "NeMo RL 7ea279ab")
    degrees = {axis: reader.integer(f"{_AT}.{word}_parallel_size") for axis, word in (
        ("pp", "pipeline_model"), ("cp", "context"), ("tp", "tensor_model"), ("ep", "expert_model"),
        ("etp", "expert_tensor"))}
    for axis, size in degrees.items():
        draft.put(f"mesh.{axis}", size)
    if gpus is not None:
        share_out(draft, gpus, {str(size.path[-1]) if size else axis: size for axis, size in degrees.items()
                                if axis in ("pp", "cp", "tp")}, "mesh.dp_shard", "GPUs over the other degrees",
                  "models/policy/lm_policy.py")
    _read_stages(reader, draft, degrees["pp"])
    split = reader.flag(f"{_AT}.sequence_parallel")
    if draft.values.get("mesh", {}).get("tp", 1) > 1:
        draft.put("training.sequence_parallel", split)
    else:
        draft.idle(split, "tensor_model_parallel_size is 1")
    _read_formats(reader, draft)
    _read_recompute(reader, draft)
    read_experts(reader, draft, _AT)
    _read_states(reader, draft)
    _read_cache(reader, draft)
    _read_adapters(reader, draft)
    read_environment(reader, draft, _AT)
    read_predictions(reader, draft, _AT, kind)
    for taken in reader.matching(f"{_AT}.model_overrides.*", f"{_AT}.freeze_config.*"):
        draft.refuse(taken, "fields of Bridge's model, or parts that are frozen")
    sent = reader.text(f"{_AT}.pipeline_dtype")
    if sent is not None and sent.value != reader.look("policy.precision") and draft.values["mesh"].get("pp", 1) > 1:
        draft.unmodelled(sent, "what stages send is counted in policy.precision")
    else:
        draft.idle(sent, "the policy's own format, or one stage")
    is_said = _ROTATION.removeprefix(_OPTION) in draft.values.get("framework_options", {})
    read_rows(reader, draft, [row for row in _ROWS if not is_said or key_of(row) != f"{_AT}.apply_rope_fusion"])
    draft.idle(reader.matching("policy.dtensor_cfg.*", "policy.optimizer.*", "policy.optimizer"),
               "of the other kind of workers")


def _read_stages(reader: Reader, draft: Draft, pp: Taken[int] | None) -> None:
    for end in ("first", "last"):
        count = reader.integer(f"{_AT}.num_layers_in_{end}_pipeline_stage")
        if pp is not None and pp.value > 1:
            draft.put(f"{_OPTION}num_layers_in_{end}_pipeline_stage", count)
        else:
            draft.idle(count, "there is one stage")


def _read_formats(reader: Reader, draft: Draft) -> None:
    """Formats of gradients, and products in fp8."""
    wide = reader.flag(f"{_DDP}.grad_reduce_in_fp32")
    value = "fp32" if wide is not None and wide.value else "bf16"
    for key in ("grad_reduce", "main_grads"):
        draft.infer(f"training.precision.{key}", value, "grad_reduce_in_fp32", wide, source=_SETUP)
    on = reader.flag(f"{_FP8}.enabled")
    if on is None or not on.value:
        draft.idle(on, "products in 16 bits")
        draft.idle(reader.matching(_FP8, f"{_FP8}.*"), "settings of fp8 alone")
        return
    draft.put("training.precision.compute", on, "fp8")
    draft.put(f"{_OPTION}fp8_format", reader.text(f"{_FP8}.fp8"))
    draft.put(f"{_OPTION}fp8_recipe", reader.text(f"{_FP8}.fp8_recipe"))
    draft.put(f"{_OPTION}fp8_param_gather", reader.flag(f"{_FP8}.fp8_param"))
    draft.idle(reader.matching(f"{_FP8}.force_clear_fp8_caches"), "before weights go to the engine")


def _read_recompute(reader: Reader, draft: Draft) -> None:
    on, kind = reader.flag(f"{_AT}.activation_checkpointing"), reader.text(f"{_AT}.recompute_granularity")
    modules = reader.words(f"{_AT}.recompute_modules")
    if on is None or not on.value:
        draft.idle([one for one in (on, kind, modules) if one], "nothing is recomputed")
    elif kind is None or kind.value == "full":
        draft.put("training.recompute", on, "full", f"{_SETUP} _apply_performance_config: uniform, layer by layer")
        draft.use(kind, why="all of a layer is recomputed")
        draft.idle(modules, "they are of granularity selective")
    elif kind.value == "selective":
        draft.infer("training.recompute", modules.value if modules else ["core_attn"], "recompute_modules, core_attn "
                    "by default", on, kind, modules, source=f"{_SETUP} _apply_performance_config")
    else:
        draft.fail(kind.where, f"{kind.key}: expected full or selective, got {kind.value!r}")
        draft.use(on, kind, modules)


def _read_cache(reader: Reader, draft: Draft) -> None:
    """From 1 on the allocator's cache is emptied before the optimizer's step (`megatron_policy_worker.py` train)."""
    level = reader.integer(f"{_AT}.empty_unused_memory_level")
    if level is not None and level.value > 0:
        draft.unmodelled(level, "cached blocks are given back within a step: memory reserved and time are those "
                                "without that")
    else:
        draft.idle(level, "off")


def _read_states(reader: Reader, draft: Draft) -> None:
    away, share = (reader.flag(f"{_OPTIMIZER}.optimizer_cpu_offload"),
                   reader.number(f"{_OPTIMIZER}.optimizer_offload_fraction"))
    overlap = Unmodelled((f"{_OPTIMIZER}.overlap_cpu_optimizer_d2h_h2d",), COPIES_BESIDE)
    if away is not None and away.value and share is not None:
        read_rows(reader, draft, [overlap])
        part = "host" if share.value == 1 else {"space": "host", "fraction": share.value}
        draft.infer("training.offload.optimizer", part, "optimizer_offload_fraction", away, share)
    else:
        draft.idle([one for one in (away, share) if one], "states are on the device")
        draft.idle(reader.matching(*overlap.keys), "states are on the device")
    _read_main(reader, draft)
    read_rows(reader, draft, _STATES)
    momentum = reader.number(f"{_OPTIMIZER}.sgd_momentum")
    if draft.values.get("training", {}).get("optimizer", {}).get("name") != "sgd":
        draft.idle(momentum, "momentum is SGD's")
    elif momentum is not None:
        draft.put("training.optimizer.momentum", momentum)
    else:
        draft.default("training.optimizer.momentum", _MOMENTUM, "Megatron-LM d98e8a64",
                      "core/optimizer/optimizer_config.py sgd_momentum")


def _read_main(reader: Reader, draft: Draft) -> None:
    """The optimizer's own formats, which decide where no distributed optimizer does (Megatron get_megatron_optimizer).

    NeMo RL 7ea279ab models/megatron/setup.py, _validate_dtype_config, checks them.
    """
    flags = {name: reader.flag(f"{_OPTIMIZER}.{name}") for name in ("bf16", "fp16")}
    precision = reader.look("policy.precision")
    own = {"bfloat16": "bf16", "float16": "fp16"}.get(precision if isinstance(precision, str) else "")
    shared = reader.look(f"{_OPTIMIZER}.use_distributed_optimizer")
    for name, flag in flags.items():
        key = f"{_OPTIMIZER}.{name}"
        if flag is None:
            continue
        if precision == "float32" and flag.value:
            draft.fail(flag.where, f"{_OPTIMIZER}.bf16=False and {_OPTIMIZER}.fp16=False must be set if "
                       f"policy.precision=float32 [{_CHECKED}]")
            draft.use(flag)
        elif name == own and not flag.value and reader.look(f"{_OPTIMIZER}.use_precision_aware_optimizer"):
            draft.fail(flag.where, f"{key}=True must be set if policy.precision={precision} when using "
                       f"use_precision_aware_optimizer=True [{_CHECKED}]")
            draft.use(flag)
        elif name == own and not flag.value and not shared and not _true(flags["bf16"]) and not _true(flags["fp16"]):
            draft.refuse(flag, "parameters of 16 bits under Megatron's FP32Optimizer, with no main parameters")
        elif name == own:
            draft.idle(flag, "as policy.precision" if flag.value else
                       "main parameters are there by use_distributed_optimizer, or by the other flag")
        elif flag.value and name == "fp16":
            draft.unmodelled(flag, "gradients are looked at for infinities and multiplied by the loss's scale")
        else:
            draft.idle(flag, "not policy.precision's format")


def _true(flag: Taken[bool] | None) -> bool:
    return flag is not None and flag.value


def _read_adapters(reader: Reader, draft: Draft) -> None:
    """LoRA: named modules, or every linear module but excluded ones (Bridge peft/module_matcher.py)."""
    on = reader.flag(f"{_PEFT}.enabled")
    if on is None or not on.value:
        draft.idle(on, "no adapters")
        draft.idle(reader.matching(f"{_PEFT}.*"), "settings of adapters alone")
        return
    draft.put("training.method", on, "lora")
    named, spared = reader.words(f"{_PEFT}.target_modules"), reader.words(f"{_PEFT}.exclude_modules")
    for key, words in (("target_modules", named), ("exclude_modules", spared)):
        if words is not None and words.value:
            draft.put(f"training.lora.{key}", words)
        else:
            draft.use(words, why="names no module")
    if not (named and named.value) and not (spared and spared.value):
        draft.infer("training.lora.exclude_modules", list(_NOTHING), "no targets: every linear module", named, spared,
                    source="Bridge peft/module_matcher.py")
    read_dropout(reader, draft, _PEFT)
    read_rows(reader, draft, _ADAPTERS)
