"""The actor of verl's reinforcement learning over Megatron: layout, Megatron-Core's settings, optimizer, what moves.

Defaults are those of verl b178a3cd `trainer/config/_generated_ppo_megatron_trainer.yaml`; code: `workers/
megatron_workers.py`. Megatron-Core's own settings are those that mbridge 0.15.1 gives a model (`core/llm_bridge.py`
_build_base_config, `core/util.py` get_model), which leaves most of them at core's defaults, and not Bridge's.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.experts import experts_of
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.megatron.without_effect import COPIES_BESIDE
from simcore.recipes.nemo_rl.experts import read_experts
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, On, Row, Says, Unmodelled, key_of, read_rows
from simcore.recipes.verl.actor import ACTOR, MODEL, RELEASE, ROWS, refuse_said
from simcore.recipes.world import share_out

__all__ = ["read_megatron_actor"]

_AT: Final = f"{ACTOR}.megatron"
_CORE: Final = f"{_AT}.override_transformer_config"
_DDP: Final = f"{_AT}.override_ddp_config"
_OPTIMIZER: Final = f"{ACTOR}.optim.override_optimizer_config"
_REF: Final = "actor_rollout_ref.ref.megatron"
_WORKERS: Final = "workers/megatron_workers.py"
_MBRIDGE: Final = "mbridge 0.15.1 core/llm_bridge.py _build_base_config"
_OPTION: Final = "framework_options."
_LEFT_OFF: Final = ("apply_rope_fusion", "gradient_accumulation_fusion")
"""Switches of Megatron-Core that are off where nothing says otherwise, and that Bridge's recipes switch on."""
_ROWS: Final[tuple[Row, ...]] = (
    Says(f"{_AT}.param_offload", "rl.param_offload", "flag"),
    Says(f"{_AT}.optimizer_offload", "rl.optimizer_offload", "flag"),
    Idle((f"{_AT}.grad_offload",), "gradients are freed with parameters (utils/megatron_utils.py:371)"),
    Says(f"{_AT}.virtual_pipeline_model_parallel_size", "training.pipeline.virtual_stages"),
    Says(f"{_AT}.use_distributed_optimizer", f"{_OPTION}use_distributed_optimizer", "flag"),
    On(f"{_AT}.use_mbridge", "weights by verl's own converters (use_mbridge: false)"),
    On(f"{_AT}.vanilla_mbridge", "weights by Megatron-Bridge (vanilla_mbridge: false)"),
    Says(f"{_AT}.dtype", "", "text", idle={"bfloat16": "as it is simulated"}, words={None: None}, what="parameters in"),
    Idle((f"{_AT}.sequence_parallel",), "mbridge cuts sequences wherever tensors are cut"),
    Idle((f"{_AT}.use_remove_padding",), "sequences are counted at full length, packed or not"),
    Idle((f"{_AT}.use_dist_checkpointing", f"{_AT}.dist_checkpointing_*", f"{_AT}.seed", f"{_AT}.forward_only",
          f"{_AT}.override_mcore_model_config"), "from where weights are read, or values"),
    Says(f"{_CORE}.attention_backend", f"{_OPTION}attention_backend", "text"),
    *(Says(f"{_CORE}.{name}", f"{_OPTION}{name}", "flag") for name in (
        "bias_activation_fusion", "masked_softmax_fusion", "account_for_loss_in_pipeline_split",
        "account_for_embedding_in_pipeline_split")),
    *(Says(f"{_CORE}.num_layers_in_{end}_pipeline_stage", f"{_OPTION}num_layers_in_{end}_pipeline_stage")
      for end in ("first", "last")),
    Idle((f"{_CORE}.bias_dropout_fusion", f"{_CORE}.persist_layer_norm", f"{_CORE}.use_flash_attn",
          f"{_CORE}.moe_z_loss_coeff"), "values, or kernels that are not told apart"),
    Idle((f"{ACTOR}.use_torch_compile",), "a sum of the entropy alone"),
    Says(f"{ACTOR}.strategy", "", "text", idle={"megatron": "these workers"}, words={None: None}, what="workers over"),
    Idle((f"{_REF.removesuffix('.megatron')}.strategy",), "these workers"),
    Idle((f"{MODEL}.enable_gradient_checkpointing", f"{MODEL}.use_remove_padding", f"{ACTOR}.fsdp_config.*",
          f"{_REF.removesuffix('.megatron')}.fsdp_config.*"), "of workers over FSDP"),
    Says(f"{ACTOR}.router_replay.mode", "", "text", idle={"disabled": "off"}, words={None: None},
         what="replay of the router's choices:"),
    Says(f"{ACTOR}.optim.optimizer", "training.optimizer.name", "text", {"adam": "adamw", "sgd": "sgd"},
         what="optimizer"),
    Off(f"{MODEL}.use_fused_kernels", "logits in chunks that the head makes (use_fused_kernels)"),
    Off(f"{ACTOR}.use_fused_kernels", "logits in chunks that the head makes (use_fused_kernels)"),
    Idle((f"{MODEL}.fused_kernel_options.*",), "read with use_fused_kernels alone"),
    Says(f"{MODEL}.lora.rank", "", idle={0: "no adapters"}, words={None: None}, what="adapters of rank"),
    Idle((f"{_REF}.*",), "the reference policy is laid out as the actor (initialize_model_parallel runs once)"),
    Idle((f"{ACTOR}.load_weight", "actor_rollout_ref.ref.load_weight"), "values"),
)


_OWN: Final = {key_of(row) for row in _ROWS} | {f"{ACTOR}.use_torch_compile", f"{MODEL}.use_remove_padding"}
"""Keys that mean something else than under FSDP."""


def read_megatron_actor(reader: Reader, draft: Draft, gpus: Answer) -> int:
    """Writes what the actor is and how `gpus` share it; returns the number of its data-parallel copies."""
    read_named_model(reader, draft, f"{MODEL}.path")
    read_remote_code(reader, draft, f"{MODEL}.trust_remote_code")
    draft.default("framework", "megatron", RELEASE, f"{_WORKERS}")
    draft.infer("framework_version", "core 0.16.1 + bridge 0.3.1", "the nearest to core 0.15.0, which verl's image "
                "has", source=f"{RELEASE} docker/Dockerfile.stable.vllm:100")
    copies = _read_layout(reader, draft, gpus)
    _read_core(reader, draft)
    _read_recompute(reader, draft)
    read_experts(reader, draft, _CORE)
    _read_states(reader, draft)
    _read_reference(reader, draft)
    _read_overrides(reader, draft)
    coefficient = reader.number(f"{ACTOR}.entropy_coeff")
    if coefficient is not None and coefficient.value:
        draft.refuse(coefficient, "an entropy in the loss of workers over Megatron")
    else:
        draft.idle(coefficient, "no entropy in the loss")
    read_rows(reader, draft, (*_ROWS, *(row for row in ROWS if key_of(row) not in _OWN or not key_of(row))))
    for taken in reader.matching(f"{_CORE}.*", f"{_DDP}.*", f"{_AT}.*"):
        draft.refuse(taken, "a setting of Megatron-Core that is not read")
    return copies


def _read_layout(reader: Reader, draft: Draft, gpus: Answer) -> int:
    degrees = {axis: reader.integer(f"{_AT}.{word}_parallel_size") for axis, word in (
        ("pp", "pipeline_model"), ("cp", "context"), ("tp", "tensor_model"), ("ep", "expert_model"),
        ("etp", "expert_tensor"))}
    for axis, size in degrees.items():
        draft.put(f"mesh.{axis}", size)
    whole = {str(size.path[-1]) if size else axis: size for axis, size in degrees.items() if axis in ("pp", "cp", "tp")}
    copies = share_out(draft, gpus, whole, "mesh.dp_shard", "GPUs over the other degrees", f"{RELEASE} {_WORKERS}")
    tp = degrees["tp"]
    if tp is not None and tp.value > 1:
        draft.infer("training.sequence_parallel", value=True, rule="wherever tensors are cut", source=_MBRIDGE)
    stages = degrees["pp"]
    frees = reader.take(f"{_CORE}.deallocate_pipeline_outputs")
    if stages is not None and stages.value > 1 and not (frees and frees.value):
        draft.infer(f"{_OPTION}deallocate_pipeline_outputs", False,  # noqa: FBT003 - a value
                    "core's default: stages keep what they have sent", stages, frees,
                    source="core 0.16.1 model_parallel_config.py:317")
    else:
        draft.idle(frees, "as it is simulated, or one stage")
    return copies or 1


def _read_core(reader: Reader, draft: Draft) -> None:
    """Settings of Megatron-Core by mbridge, where the recipe has none."""
    for name in _LEFT_OFF:
        said = reader.flag(f"{_CORE}.{name}")
        if said is not None:
            draft.put(f"{_OPTION}{name}", said)
        else:
            draft.default(f"{_OPTION}{name}", value=False, release="core 0.16.1", source="transformer_config.py; "
                          f"{_MBRIDGE} does not set it")
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        said = reader.flag(f"{_DDP}.{name}")
        if said is not None:
            draft.put(f"{_OPTION}{name}", said)
        else:
            draft.default(f"{_OPTION}{name}", value=False, release="core 0.16.1", source="distributed/"
                          "distributed_data_parallel_config.py; mbridge 0.15.1 core/util.py get_model")
    wide = reader.flag(f"{_DDP}.grad_reduce_in_fp32")
    kind = "bf16" if wide is not None and not wide.value else "fp32"
    for key in ("grad_reduce", "main_grads"):
        draft.infer(f"training.precision.{key}", kind, "grad_reduce_in_fp32", wide,
                    source="mbridge 0.15.1 core/util.py get_model")
    if reader.look(f"{_CORE}.attention_backend") is None:
        draft.default(f"{_OPTION}attention_backend", "flash", RELEASE, "trainer/config/_generated_ppo_megatron_trainer")
    draft.infer(f"{_OPTION}cross_entropy_loss_fusion", value=False, rule="log-probabilities by core's own cross "
                "entropy", source=f"{RELEASE} utils/megatron/tensor_parallel.py vocab_parallel_log_probs_from_logits")
    if experts_of(draft):
        if reader.look(f"{_CORE}.bias_activation_fusion") is None:
            draft.default(f"{_OPTION}bias_activation_fusion", value=True, release="mbridge 0.15.1",
                          source="models/qwen3moe.py, models/qwen2moe.py _build_config")
        if reader.look(f"{_CORE}.moe_permute_fusion") is None:
            draft.default(f"{_OPTION}moe_permute_fusion", value=False, release="core 0.16.1",
                          source=f"transformer_config.py; {_MBRIDGE} does not set it")


def _read_recompute(reader: Reader, draft: Draft) -> None:
    kind, method, count = (reader.text(f"{_CORE}.recompute_granularity"), reader.text(f"{_CORE}.recompute_method"),
                           reader.integer(f"{_CORE}.recompute_num_layers"))
    modules = reader.words(f"{_CORE}.recompute_modules")
    if kind is None:
        draft.default("training.recompute", "none", RELEASE, "recompute_granularity: null")
        draft.idle([one for one in (method, count, modules) if one], "nothing is recomputed")
    elif kind.value == "full" and method is not None and method.value in ("uniform", "block"):
        size = count.value if count else 1
        value: object = "full" if method.value == "uniform" and size == 1 else {
            "mode": method.value, "num_layers": size}
        draft.infer("training.recompute", value, "recompute_method, recompute_num_layers", kind, method, count)
        draft.idle(modules, "of granularity selective")
    elif kind.value == "selective":
        draft.infer("training.recompute", modules.value if modules else ["core_attn"], "recompute_modules, core_attn "
                    "by default", kind, modules)
        draft.idle([one for one in (method, count) if one], "of granularity full")
    else:
        draft.fail(kind.where, f"{kind.key}: {kind.value}: expected selective, or full with a recompute_method (core "
                   "0.16.1 transformer_config.py __post_init__)")
        draft.use(kind, method, count, modules)


def _read_states(reader: Reader, draft: Draft) -> None:
    """Fields of core's OptimizerConfig (`utils/megatron/optimizer.py` init_megatron_optim_config)."""
    away, share = (reader.flag(f"{_OPTIMIZER}.optimizer_cpu_offload"),
                   reader.number(f"{_OPTIMIZER}.optimizer_offload_fraction"))
    overlap = Unmodelled((f"{_OPTIMIZER}.overlap_cpu_optimizer_d2h_h2d",), COPIES_BESIDE)
    if away is not None and away.value:
        part = share.value if share else 0.0
        draft.infer("training.offload.optimizer", "host" if part == 1 else {"space": "host", "fraction": part},
                    "optimizer_offload_fraction", away, share)
        read_rows(reader, draft, [overlap])
    else:
        draft.idle([one for one in (away, share) if one], "states are on the device")
        draft.idle(reader.matching(*overlap.keys), "states are on the device")
    draft.put(f"{_OPTION}use_precision_aware_optimizer", reader.flag(f"{_OPTIMIZER}.use_precision_aware_optimizer"))
    for taken in reader.matching(f"{_OPTIMIZER}.*"):
        draft.refuse(taken, "a field of core's optimizer that is not read")
    draft.idle(reader.take(_OPTIMIZER), "nothing is overridden")


def _read_reference(reader: Reader, draft: Draft) -> None:
    """A module of its own, on the device unless its parameters are on the host but for its passes."""
    switches = [one for key in ("algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss") if (one := reader.flag(key))]
    has = any(one.value for one in switches)
    away, own = reader.flag(f"{_REF}.param_offload"), reader.look(f"{_AT}.param_offload") is True
    on_host = away.value if away is not None else own
    draft.infer("rl.reference", ("host" if on_host else "device") if has else "none", "a penalty asks for a reference "
                "policy; ref.megatron.param_offload, by default the actor's" if has else "no penalty", *switches,
                away if has else None, source=f"{RELEASE} trainer/ppo/utils.py need_reference_policy")
    draft.idle(away if not has else None, "no reference policy")
    draft.refuse(reader.take("actor_rollout_ref.ref.model.path"), "another model as reference policy")


def _read_overrides(reader: Reader, draft: Draft) -> None:
    """Fields of the model's configuration that the recipe changes."""
    at = f"{MODEL}.override_config"
    draft.idle(reader.matching(f"{at}.model_config.max_position_embeddings"), "a limit of positions")
    still = reader.flag(f"{at}.moe_config.freeze_moe_router")
    if still is not None and still.value:
        draft.unmodelled(still, "weights of routers are counted as trained: their gradients and states are small")
    else:
        draft.idle(still, "off")
    for taken in reader.matching(f"{at}.*"):
        draft.refuse(taken, "a field of the model's configuration")
    draft.idle(reader.take(at), "nothing is overridden")
    refuse_said(reader, draft, f"{MODEL}.lora_adapter_path", "adapters that are read from files")
