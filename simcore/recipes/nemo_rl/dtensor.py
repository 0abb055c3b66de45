"""Workers of DTensor: block `policy.dtensor_cfg`, which trains by Automodel.

[Note: versions]
`_v2: true` is the worker that the framework `automodel` describes as NeMo RL's (`frameworks/automodel/policies`).
Without it the older worker runs (`models/policy/lm_policy.py`:163), a version of its own there: transformers' layers,
whatever automodel_kwargs say, which only the newer reads.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.answers import Answer
from simcore.recipes.automodel.fused_adam import names_fused_adam, read_fused_adam
from simcore.recipes.automodel.optimizer import read_implementation
from simcore.recipes.draft import Draft
from simcore.recipes.nemo_rl.keys.dropout import read_dropout
from simcore.recipes.nemo_rl.keys.environment import read_environment
from simcore.recipes.nemo_rl.policy import family_in
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows
from simcore.recipes.world import share_out

__all__ = ["read_dtensor"]

_AT: Final = "policy.dtensor_cfg"
_LORA: Final = f"{_AT}.lora_cfg"
_KWARGS: Final = f"{_AT}.automodel_kwargs"
_BACKEND: Final = f"{_KWARGS}.backend"
_SETUP: Final = "models/automodel/setup.py"
_OLDER: Final = "models/policy/workers/dtensor_policy_worker.py"
_MATCHER: Final = "Automodel _peft/module_matcher.py"
_AS_HF: Final = {
    **dict.fromkeys(("llama", "qwen2"), (
        "NeMo RL sets force_hf: Automodel's adapter of their state dict converts no single tensor",
        "models/automodel/setup.py _maybe_set_force_hf")),
    "qwen3": ("the pinned Automodel has no layers of its own", "Automodel 24b47e856 _transformers/registry.py")}
"""Families of which transformers' layers run: why, and where upstream says so."""
_OPTION: Final = "framework_options."
_DISPATCHERS: Final = {name: name for name in ("deepep", "hybridep", "torch")}
_ROWS: Final = (
    Says(f"{_AT}.activation_checkpointing", "training.recompute", "flag", {True: "full", False: "none"}),
    Says(f"{_AT}.moe_parallelizer.reshard_after_forward", f"{_OPTION}moe.reshard_after_forward", "flag"),
    Off(f"{_AT}.custom_parallel_plan", "a plan of tensor parallelism of one's own"),
    Idle((f"{_AT}.enabled", f"{_AT}._v2"), "which worker runs"),
    Idle((f"{_AT}.env_vars",), "no variable is set"),
    Idle((f"{_AT}.moe_parallelizer.wrap_outer_model",), "the outer model has no parameter of its own"),
    Idle((f"{_AT}.defer_fsdp_grad_sync",), "its loop over microbatches sets no gradients to wait"),
    Unmodelled((f"{_AT}.moe_parallelizer.ignore_router_for_ac",), "a checkpoint keeps the router's product and top-k"),
)
_LAYERS: Final = (
    Says(f"{_KWARGS}.attn_implementation", f"{_OPTION}attn_implementation", "text"),
    Says(f"{_KWARGS}.use_liger_kernel", f"{_OPTION}use_liger_kernel", "flag"),
    Says(f"{_BACKEND}.attn", f"{_OPTION}attn", "text", {"te": "te", "sdpa": "sdpa"}, what="attention by"),
    Says(f"{_BACKEND}.dispatcher", f"{_OPTION}dispatcher", "text", _DISPATCHERS, what="exchange of tokens by"),
    Says(f"{_BACKEND}.fake_balanced_gate", f"{_OPTION}fake_balanced_gate", "flag", {True: True},
         {False: "the default"}),
    Says(f"{_BACKEND}.enable_fsdp_optimizations", f"{_OPTION}enable_fsdp_optimizations", "flag", {True: True},
         {False: "the default"}),
    Unmodelled((f"{_BACKEND}.linear", f"{_BACKEND}.rms_norm", f"{_BACKEND}.rope_fusion", f"{_BACKEND}.experts",
                f"{_BACKEND}.gate_precision"), "kernels are not told apart: memory is counted as torch's",
               off=("torch",)),
    Idle((f"{_BACKEND}._target_", f"{_BACKEND}.enable_hf_state_dict_adapter", f"{_KWARGS}.use_sdpa_patching"),
         "which files are read, and by which code"),
    Idle((_KWARGS, f"{_KWARGS}.freeze_config.freeze_vision_*", f"{_KWARGS}.freeze_config.freeze_audio_*"),
         "the policy has text alone, or its tower trains"),
    Off(f"{_KWARGS}.freeze_config.freeze_language_model", "a language model that does not train"),
)
_ADAPTERS: Final = (
    Says(f"{_LORA}.dim", "training.lora.rank"),
    Says(f"{_LORA}.alpha", "training.lora.alpha", "number"),
    Unmodelled((f"{_LORA}.use_triton",), "kernels are not told apart: adapters are counted as torch's"),
    Idle((f"{_LORA}.lora_A_init", f"{_LORA}.enabled"), "first values of adapters"),
)
_OPTIMIZER: Final = (
    Says("policy.optimizer.name", "training.optimizer.name", "text",
         {"torch.optim.AdamW": "adamw", "torch.optim.Adam": "adam", "torch.optim.SGD": "sgd"}, what="optimizer"),
    Says("policy.optimizer.kwargs.momentum", "training.optimizer.momentum", "number"),
)


def read_dtensor(reader: Reader, draft: Draft, gpus: Answer | None) -> None:
    """Reads a policy that trains by DTensor on `gpus`."""
    newer = reader.flag(f"{_AT}._v2")
    is_older = newer is None or not newer.value
    draft.infer("framework", "automodel", "the worker of DTensor", source=_SETUP)
    if is_older:
        draft.infer("framework_version", "NeMo RL 7ea279ab, _v2 false", "the older worker, as _v2 is not true", newer,
                    source="models/policy/lm_policy.py:163")
    else:
        draft.infer("framework_version", "NeMo RL 7ea279ab", "the release of the recipes", newer)
    sizes = {axis: reader.integer(f"{_AT}.{word}_parallel_size") for axis, word in (
        ("cp", "context"), ("tp", "tensor"), ("ep", "expert"))}
    for axis, size in sizes.items():
        draft.put(f"mesh.{axis}", size)
    copies = reader.integer(f"{_AT}.dp_replicate_size")
    draft.put("mesh.dp_replicate", copies)
    if gpus is not None:
        share_out(draft, gpus, {"context_parallel_size": sizes["cp"], "tensor_parallel_size": sizes["tp"],
                                "dp_replicate_size": copies}, "mesh.dp_shard", "GPUs over the other degrees",
                  f"{_SETUP} setup_distributed")
    draft.refuse(reader.take(f"{_AT}.moe_parallelizer.lm_head_precision"), "a head in another format than the model")
    (_read_older_layers(reader, draft) if is_older else _read_layers(reader, draft, sizes["ep"]))
    _read_sequences(reader, draft, sizes["tp"])
    _read_offload(reader, draft)
    _read_adapters(reader, draft, sizes["ep"])
    _read_optimizer(reader, draft)
    _read_clipping(reader, draft)
    read_environment(reader, draft, _AT)
    _read_cache(reader, draft)
    read_rows(reader, draft, _ROWS)
    draft.idle(reader.matching("policy.megatron_cfg.*"), "of the other kind of workers")


def _read_cache(reader: Reader, draft: Draft) -> None:
    """Tells that the allocator's cache is emptied before every so many microbatches (`on_microbatch_start`)."""
    key = f"{_AT}.clear_cache_every_n_steps"
    if reader.look(key):
        draft.unmodelled(reader.integer(key), "cached blocks are given back between microbatches: memory reserved and "
                                              "time are those without that")
    else:
        draft.idle(reader.matching(key), "off")


def _read_clipping(reader: Reader, draft: Draft) -> None:
    """Lists the norm at which Automodel clips gradients; null leaves out norm and product (`clip_grad_norm`)."""
    key = "policy.max_grad_norm"
    if reader.look(key) is None:
        clips = False
        if nulls := reader.matching(key):
            draft.infer(f"{_OPTION}clip_grad_norm", clips, "null: no gradient is multiplied", *nulls,
                        source="models/policy/workers/dtensor_policy_worker_v2.py:367")
    else:
        draft.idle(reader.number(key), "the norm is taken and gradients are multiplied at any number: both are timed")


def _read_layers(reader: Reader, draft: Draft, ep: Taken[int] | None) -> None:
    """Layers that run, and their kernels; attention is FlashAttention 2 with packs, and SDPA over cp."""
    forced, family = reader.flag(f"{_KWARGS}.force_hf"), family_in(draft)
    if forced is not None and forced.value:
        hub = family == "nemotron_h"
        draft.infer("implementation", "hub" if hub else "hf", "force_hf: the code of the model's repository" if hub else
                    "force_hf: transformers' layers", forced, source=f"{_SETUP} _maybe_set_force_hf")
    elif family in _AS_HF:
        draft.infer("implementation", "hf", _AS_HF[family][0], forced, source=_AS_HF[family][1])
    else:
        draft.idle(forced, "the default")
    deep = reader.flag(f"{_BACKEND}.enable_deepep")
    if deep is not None and ep is not None and ep.value > 1:
        draft.infer(f"{_OPTION}dispatcher", "deepep" if deep.value else "torch", "backend.enable_deepep", deep)
    else:
        draft.idle(deep, "tokens stay on their rank")
    packs = reader.look("policy.sequence_packing.enabled") is True
    if packs and not reader.has(f"{_KWARGS}.attn_implementation") and not reader.is_mapping(_BACKEND):
        draft.infer(f"{_OPTION}attn_implementation", "flash_attention_2", "packs are read by FlashAttention 2",
                    source=f"{_SETUP} validate_and_prepare_config")
    read_rows(reader, draft, _LAYERS)


def _read_older_layers(reader: Reader, draft: Draft) -> None:
    """Layers of transformers, with SDPA or, for packs, FlashAttention 2 (dtensor_policy_worker.py:290)."""
    draft.infer("implementation", "hf", "the older worker runs transformers' layers", source=_OLDER)
    if reader.look("policy.sequence_packing.enabled") is True:
        draft.infer(f"{_OPTION}attn_implementation", "flash_attention_2", "packs are read by FlashAttention 2",
                    source=_OLDER)
    draft.idle(reader.matching(f"{_KWARGS}.*", _KWARGS), "the older worker does not read it")


def _read_sequences(reader: Reader, draft: Draft, tp: Taken[int] | None) -> None:
    split = reader.flag(f"{_AT}.sequence_parallel")
    if tp is not None and tp.value > 1:
        draft.put("training.sequence_parallel", split)
    else:
        draft.idle(split, "tensor_parallel_size is 1")


def _read_offload(reader: Reader, draft: Draft) -> None:
    """FSDP2's CPUOffloadPolicy: parameters, gradients and optimizer states on the host."""
    away = reader.flag(f"{_AT}.cpu_offload")
    if away is None or not away.value:
        draft.idle(away, "everything is on the device")
        return
    for part in ("params", "gradients", "optimizer"):
        draft.put(f"training.offload.{part}", away, "host", f"{_SETUP} CPUOffloadPolicy")


def _read_adapters(reader: Reader, draft: Draft, ep: Taken[int] | None) -> None:
    """LoRA: all linear layers, or named ones, or all but named ones."""
    on = reader.flag(f"{_LORA}.enabled")
    if on is None or not on.value:
        draft.idle(on, "no adapters")
        draft.idle(reader.matching(f"{_LORA}.*"), "settings of adapters alone")
        return
    draft.put("training.method", on, "lora")
    everything, named, spared = (reader.flag(f"{_LORA}.match_all_linear"), reader.words(f"{_LORA}.target_modules"),
                                 reader.words(f"{_LORA}.exclude_modules"))
    if everything is not None and everything.value:
        draft.put("training.lora.target_modules", everything, ["*"], _MATCHER)
        if ep is not None and ep.value > 1:
            draft.infer("training.lora.expert_adapters", "none", "match_all_linear: experts are no linear layer",
                        source=_MATCHER)
        draft.idle([one for one in (named, spared) if one], "match_all_linear goes before them")
    else:
        draft.use(everything, why="modules are named")
        for key, words in (("target_modules", named), ("exclude_modules", spared)):
            if words is not None and words.value:
                draft.put(f"training.lora.{key}", words)
            else:
                draft.idle(words, "an empty list")
    read_dropout(reader, draft, _LORA)
    read_rows(reader, draft, _ADAPTERS)


def _read_optimizer(reader: Reader, draft: Draft) -> None:
    if names_fused_adam(reader.look("policy.optimizer.name")):
        read_fused_adam(reader, draft, "policy.optimizer.name", "policy.optimizer.kwargs.")
        return
    read_implementation(reader, draft, "policy.optimizer.kwargs.")
    read_rows(reader, draft, _OPTIMIZER)
    if draft.refuses("policy.optimizer.name"):
        draft.idle(reader.matching("policy.optimizer.kwargs.*"), "settings of an optimizer that is refused")
