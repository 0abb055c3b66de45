"""Arguments of formats, optimizer, recomputation and loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.recipes.megatron.argument_puts import ArgumentPuts
from simcore.recipes.megatron.arguments import MAIN
from simcore.recipes.megatron.offload import put_offload

__all__ = ["write_step"]

_OPTION: Final = "framework_options."
_PRECISION: Final = "training.precision."
_OPTIMIZER: Final = "training.optimizer."


def write_step(puts: ArgumentPuts) -> None:
    """Writes what a step computes, and in which formats."""
    _write_formats(puts)
    _write_narrow(puts)
    _write_optimizer(puts)
    _write_states(puts)
    _write_recompute(puts)
    put_offload(puts)
    _write_loss(puts)


def _write_formats(puts: ArgumentPuts) -> None:
    outline = puts.outline
    compute, params = outline.value(f"{_PRECISION}compute"), outline.value(f"{_PRECISION}params")
    base = compute if compute in ("bf16", "fp16", "fp32") else "fp32" if params == "fp32" else "bf16"
    puts.put("bf16", base == "bf16", f"{_PRECISION}compute", f"{_PRECISION}params")
    puts.put("fp16", base == "fp16")
    grads = outline.value(f"{_PRECISION}main_grads")
    if outline.value(f"{_PRECISION}grad_reduce") == "auto":  # one buffer: `frameworks/megatron/precision.py`
        outline.counts_as(f"{_PRECISION}grad_reduce", grads)
    keys = f"{_PRECISION}main_grads", f"{_PRECISION}grad_reduce"
    if outline.has_option("data_parallel_sharding_strategy") and str(outline.value("framework_version")) == MAIN:
        puts.put("megatron_fsdp_main_grads_dtype", grads, *keys)
        sent = outline.value(f"{_PRECISION}grad_reduce")
        if sent not in ("auto", grads):
            puts.put("megatron_fsdp_grad_comm_dtype", sent, f"{_PRECISION}grad_reduce")
    if base == "bf16":
        puts.put("grad_reduce_in_bf16", grads == "bf16", *keys)
    elif base == "fp16":
        puts.put("accumulate_allreduce_grads_in_fp32", grads == "fp32", *keys)


def _write_narrow(puts: ArgumentPuts) -> None:
    """Settings of fp8 and fp4; recipes of formats that are chosen are written, for upstream's are others."""
    outline, compute = puts.outline, puts.outline.value(f"{_PRECISION}compute")
    if compute not in ("fp8", "fp4"):
        if outline.value(f"{_OPTION}use_precision_aware_optimizer") is True:
            puts.put("fp8_recipe", outline.value(f"{_OPTION}fp8_recipe") or "tensorwise", f"{_OPTION}fp8_recipe")
        return
    kind = outline.value(f"{_OPTION}{compute}_format") or ("hybrid" if compute == "fp8" else "e2m1")
    puts.put(compute, kind, f"{_OPTION}{compute}_format")
    outline.counts_as(f"{_OPTION}{compute}_format", kind)
    for name in (f"{compute}_recipe", f"{compute}_param_gather"):
        puts.put(name, outline.value(f"{_OPTION}{name}"), f"{_OPTION}{name}")
    if compute == "fp8":
        if outline.value(f"{_OPTION}fp8_recipe") == "delayed":
            puts.put("fp8_amax_history_len", outline.value(f"{_OPTION}fp8_amax_history_len"),
                     f"{_OPTION}fp8_amax_history_len")
        puts.say("fp8_wgrad", f"{_OPTION}fp8_wgrad", True)  # noqa: FBT003
        for name in ("reuse_grad_buf_for_mxfp8_param_ag", "moe_router_padding_for_quantization",
                     "fp8_output_proj"):
            puts.say(name, f"{_OPTION}{name}", False)  # noqa: FBT003
    ends = outline.value(f"{_OPTION}first_last_layers_bf16")
    puts.put("first_last_layers_bf16", bool(ends), f"{_OPTION}first_last_layers_bf16")
    if ends:
        for end in ("start", "end"):
            puts.say(f"num_layers_at_{end}_in_bf16", f"{_OPTION}num_layers_at_{end}_in_bf16", 1)


def _write_optimizer(puts: ArgumentPuts) -> None:
    outline, key = puts.outline, f"{_OPTIMIZER}name"
    name = outline.value(key)
    if name == "adamw":  # core 0.16.1 optimizer/optimizer_config.py: decoupled_weight_decay is True
        outline.counts_as(key, "adam")
        name = "adam"
    if name not in ("adam", "sgd", "muon", "dist_muon"):
        outline.refuse(key, f"{name}: Megatron's arguments have adam, sgd, muon and dist_muon")
        return
    puts.put("optimizer", name, key)
    if name == "sgd":
        momentum = outline.value(f"{_OPTIMIZER}momentum")
        puts.put("sgd_momentum", momentum, f"{_OPTIMIZER}momentum")
        outline.counts_as(f"{_OPTIMIZER}momentum", 0.9 if momentum is None else momentum)
    outline.value(f"{_OPTIMIZER}implementation")
    if not outline.has_option("data_parallel_sharding_strategy"):
        scatter = outline.value(f"{_OPTION}use_distributed_optimizer")
        puts.put("use_distributed_optimizer", bool(scatter), f"{_OPTION}use_distributed_optimizer")
    whole = outline.given(f"{_OPTION}use_layer_wise_param_layout")
    if whole is not None and puts.is_main:
        puts.put("use_layer_wise_param_layout", whole, f"{_OPTION}use_layer_wise_param_layout")


def _write_states(puts: ArgumentPuts) -> None:
    outline = puts.outline
    key = f"{_OPTION}use_precision_aware_optimizer"
    puts.put("use_precision_aware_optimizer", outline.value(key) is True, key)
    puts.put("main_params_dtype", outline.given(f"{_OPTIMIZER}master"), f"{_OPTIMIZER}master")
    moments = outline.given(f"{_OPTIMIZER}moments")
    for field in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        puts.put(field, moments if moments != "auto" else None, f"{_OPTIMIZER}moments")
    away: Any = outline.given("training.offload.optimizer")
    space, share = (away.get("space"), away.get("fraction", 1.0)) if isinstance(away, Mapping) else (away, 1.0)
    if space == "host":
        puts.put("optimizer_cpu_offload", True, "training.offload.optimizer")  # noqa: FBT003
        puts.put("optimizer_offload_fraction", share, "training.offload.optimizer")


def _write_recompute(puts: ArgumentPuts) -> None:
    asked: Any = puts.outline.given("training.recompute")
    key = "training.recompute"
    if isinstance(asked, list) and asked:
        puts.put("recompute_granularity", "selective", key)
        puts.put("recompute_modules", asked, key)
    elif asked == "full" or (isinstance(asked, Mapping) and asked.get("mode") in ("uniform", "block")):
        mode, count = ("uniform", 1) if asked == "full" else (asked["mode"], asked.get("num_layers", 1))
        puts.put("recompute_granularity", "full", key)
        puts.put("recompute_method", mode, key)
        puts.put("recompute_num_layers", count, key)


def _write_loss(puts: ArgumentPuts) -> None:
    outline, key, option = puts.outline, "training.loss", f"{_OPTION}cross_entropy_loss_fusion"
    loss = outline.value(key)
    if outline.given(option) is False:
        outline.said.add(option)
        outline.counts_as(key, "megatron")
        return
    if outline.given(option) is True:
        outline.as_without(option)
    if loss == "te" and puts.is_main:
        outline.refuse(key, "Transformer Engine cross entropy loss fusion is disabled due to stability issues "
                            "(Megatron-LM d98e8a64 training/arguments.py:1700)")
    if outline.given(f"{_OPTION}deterministic_mode") is True:
        outline.refuse(key, "a fused cross entropy is not deterministic: Megatron-LM asks for "
                            f"{option}=false beside deterministic_mode (training/determinism.py)")
    if loss in ("te", "megatron"):
        puts.put("cross_entropy_loss_fusion", True, key)  # noqa: FBT003
        puts.put("cross_entropy_fusion_impl", "te" if loss == "te" else "native", key)
