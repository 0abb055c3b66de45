"""Keys of Bridge's configuration with the values that a scenario asks for, beside what Bridge has without the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.frameworks.megatron.lora import DEFAULT_TARGETS
from simcore.frameworks.megatron.pipeline_layout import num_chunks
from simcore.recipes.bridge.experts import PADS, wanted_stash
from simcore.recipes.bridge.framework import SWITCHED
from simcore.recipes.bridge.model import TURNED_APART
from simcore.recipes.bridge.offload import wanted_offload
from simcore.recipes.bridge.parallel import BUCKET, WHOLE
from simcore.recipes.bridge.rows import SAID
from simcore.recipes.outline import Outline
from simcore.recipes.rows import Says

__all__ = ["Wanted", "wanted"]

Wanted = tuple[str, Any, Any]
"""Key, the value that is asked for, and the value that Bridge has if a recipe does not have the key."""
_OPTION: Final = "framework_options."
_ALLOCATOR: Final = "env_vars.PYTORCH_CUDA_ALLOC_CONF"
_PRECISION: Final = "training.precision."
_LAYOUT: Final = "pipeline_model_parallel_layout"
_ROTATION: Final = "model.apply_rope_fusion"
_FP8: Final = ("fp8_recipe", "fp8_param_gather", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
               "num_layers_at_end_in_bf16", "fp8_dot_product_attention", "fp8_multi_head_attention",
               "reuse_grad_buf_for_mxfp8_param_ag")
_OVERLAPS: Final = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "defer_embedding_wgrad_compute")
_OPTIONS_OF_FSDP: Final = {"data_parallel_sharding_strategy": "no_shard", "outer_dp_sharding_strategy": "no_shard",
                           "suggested_communication_unit_size": None, "fsdp_double_buffer": False,
                           "fsdp_all_gather_in_start_param_sync": True, "keep_fp8_transpose_cache": False}


def wanted(outline: Outline, base: Mapping[str, Any]) -> Iterator[Wanted]:
    """Keys for a scenario, for a recipe with the values `base`."""
    yield from _layout(outline)
    yield from _batches(outline)
    yield from _recompute(outline)
    yield from wanted_offload(outline)
    yield from _formats(outline, base)
    yield from _states(outline)
    yield from _overlap(outline, base)
    yield from _experts(outline, base)
    yield from _rest(outline)
    yield from _rows(outline, base)
    yield from _allocator(outline, base)
    if outline.value("training.method") == "lora":
        yield from _adapters(outline, base)


def _allocator(outline: Outline, base: Mapping[str, Any]) -> Iterator[Wanted]:
    """Most recipes ask for expandable segments; a scenario that does not takes them back."""
    if base.get(_ALLOCATOR) and not outline.given("environment.expandable_segments"):
        yield _ALLOCATOR, "expandable_segments:False", None


def _layout(outline: Outline) -> Iterator[Wanted]:
    for axis, word in (("tp", "tensor_model"), ("pp", "pipeline_model"), ("cp", "context"), ("ep", "expert_model")):
        yield f"model.{word}_parallel_size", outline.value(f"mesh.{axis}"), 1
    if outline.settled.has_experts:
        yield "model.expert_tensor_parallel_size", outline.value("mesh.etp"), None
    yield "ddp.num_distributed_optimizer_instances", outline.value("mesh.dp_replicate"), 1
    yield "model.sequence_parallel", outline.value("training.sequence_parallel"), None
    layout, chunks = outline.given(f"{_OPTION}{_LAYOUT}"), outline.value("training.pipeline.virtual_stages")
    if layout is not None:  # read before the layout says it: Bridge training/comm_overlap.py:429
        chunks = num_chunks(layout) // outline.value("mesh.pp")
    yield "model.virtual_pipeline_model_parallel_size", chunks if chunks > 1 else None, None
    yield f"model.{_LAYOUT}", layout, None


def _batches(outline: Outline) -> Iterator[Wanted]:
    length, packs = outline.value("training.seq_len"), outline.value("training.lengths") == "packed"
    yield "dataset.seq_length", length, None
    yield "dataset.enable_offline_packing", packs, False


def _recompute(outline: Outline) -> Iterator[Wanted]:
    asked: Any = outline.given("training.recompute")
    kind = method = count = modules = None
    if isinstance(asked, list) and asked:
        kind, modules = "selective", asked
    elif asked == "full":
        kind, method, count = "full", "uniform", 1
    elif isinstance(asked, Mapping) and asked.get("mode") in ("uniform", "block"):
        kind, method, count = "full", asked["mode"], asked.get("num_layers", 1)
    yield "model.recompute_granularity", kind, None
    if kind == "full":
        yield "model.recompute_method", method, None
        yield "model.recompute_num_layers", count, None
    if kind == "selective":
        yield "model.recompute_modules", modules, None


def _formats(outline: Outline, base: Mapping[str, Any]) -> Iterator[Wanted]:
    """A recipe states its formats by the name of a set, or key by key."""
    compute, grads = outline.value(f"{_PRECISION}compute"), outline.value(f"{_PRECISION}main_grads")
    if outline.value(f"{_PRECISION}grad_reduce") == "auto":  # one buffer: `frameworks/megatron/precision.py`
        outline.counts_as(f"{_PRECISION}grad_reduce", grads)
    if outline.has_option("data_parallel_sharding_strategy"):  # main_grads_dtype of None is that of parameters
        yield "ddp.megatron_fsdp_main_grads_dtype", grads, "bf16"
        sent = outline.value(f"{_PRECISION}grad_reduce")
        given = base.get("ddp.megatron_fsdp_grad_comm_dtype")
        yield "ddp.megatron_fsdp_grad_comm_dtype", sent if sent not in ("auto", grads) or given == sent else None, None
    single = [list(one) for one in (outline.value(f"{_OPTION}quant_recipe") or {}).items()]
    if base.get("model.quant_recipe") and single == base["model.quant_recipe"]:
        yield "model.quant_recipe", single, None
    keyed = any(key.startswith("mixed_precision.") for key in base)
    if not keyed:
        yield "mixed_precision", f"{compute}_mixed", "bf16_mixed"
        return
    yield "mixed_precision.grad_reduce_in_fp32", grads == "fp32", True
    yield "mixed_precision.fp8", (outline.value(f"{_OPTION}fp8_format") or "hybrid") if compute == "fp8" else None, None
    yield "mixed_precision.fp4", (outline.value(f"{_OPTION}fp4_format") or "e2m1") if compute == "fp4" else None, None
    if compute == "fp8":
        for name in _FP8:
            value = outline.value(f"{_OPTION}{name}")
            if value is not None:
                yield f"mixed_precision.{name}", value, None
        yield "model.fp8_output_proj", outline.value(f"{_OPTION}fp8_output_proj") is True, False


def _states(outline: Outline) -> Iterator[Wanted]:
    name = outline.value("training.optimizer.name")
    if name == "adamw":  # core optimizer/optimizer_config.py: decoupled_weight_decay is True
        outline.counts_as("training.optimizer.name", "adam")
    yield "optimizer.optimizer", "adam" if name == "adamw" else name, "adam"
    outline.value("training.optimizer.implementation")
    scatter = outline.value(f"{_OPTION}use_distributed_optimizer") is not False
    shards = outline.has_option("data_parallel_sharding_strategy")
    for block in ("ddp", "optimizer"):
        yield f"{block}.use_distributed_optimizer", scatter or shards, scatter
    yield "optimizer.use_precision_aware_optimizer", outline.value(
        f"{_OPTION}use_precision_aware_optimizer") is True, False
    moments = outline.value("training.optimizer.moments") or "fp32"
    for field in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        yield f"optimizer.{field}", moments, "fp32"
    away: Any = outline.given("training.offload.optimizer")
    space, share = (away.get("space"), away.get("fraction", 1.0)) if isinstance(away, Mapping) else (away, 1.0)
    yield "optimizer.optimizer_cpu_offload", space == "host", False
    if space == "host":
        yield "optimizer.optimizer_offload_fraction", share, 1.0
    yield "ddp.use_megatron_fsdp", shards, False
    if shards:
        for key, usual in _OPTIONS_OF_FSDP.items():
            value = outline.value(f"{_OPTION}{key}")
            yield f"ddp.{key}", usual if value is None else value, usual
        for key in SWITCHED:
            option = f"{_OPTION}{key.rpartition('.')[2]}"
            yield key, outline.value(option) is True, False
            if outline.given(option) is False:
                outline.as_without(option)


def _overlap(outline: Outline, base: Mapping[str, Any]) -> Iterator[Wanted]:
    """`bridge.parallel.read_overlap`, backwards: a CommOverlapConfig overlaps and makes buckets by itself."""
    switched = [outline.given(f"{_OPTION}{name}") for name in ("tp_comm_overlap", *_OVERLAPS)]
    has_one = any(key.startswith("comm_overlap.") for key in base) or True in switched
    if not outline.has_option("data_parallel_sharding_strategy"):
        for name in ("overlap_grad_reduce", "overlap_param_gather"):
            on = outline.value(f"{_OPTION}{name}") is not False
            yield f"ddp.{name}", on, None
            if has_one:
                yield f"comm_overlap.{name}", on, None
    yield from _buckets(outline, base, has_one=has_one)
    yield "ddp.num_buckets", outline.given(f"{_OPTION}num_buckets"), None
    registers = outline.given(f"{_OPTION}nccl_ub")
    yield "ddp.nccl_ub", registers is True, False
    if registers is False:
        outline.as_without(f"{_OPTION}nccl_ub")
    products = outline.given(f"{_OPTION}tp_comm_overlap") is True
    yield "comm_overlap.tp_comm_overlap", products, False
    if outline.given(f"{_OPTION}tp_comm_overlap") is False:
        outline.as_without(f"{_OPTION}tp_comm_overlap")
    for name in _OVERLAPS:
        given = outline.given(f"{_OPTION}{name}")
        yield f"comm_overlap.{name}", given is True, False
        if given is False:
            outline.as_without(f"{_OPTION}{name}")
    if outline.given(f"{_OPTION}defer_embedding_wgrad_compute"):
        yield "comm_overlap.wgrad_deferral_limit", outline.given(f"{_OPTION}wgrad_deferral_limit") or 0, 0


def _buckets(outline: Outline, base: Mapping[str, Any], *, has_one: bool) -> Iterator[Wanted]:
    """`bridge.parallel._read_buckets`, backwards."""
    bucket, shards = outline.value(f"{_OPTION}bucket_size"), outline.has_option("data_parallel_sharding_strategy")
    if bucket is not None and has_one:
        yield "comm_overlap.bucket_size", bucket, BUCKET
        return
    if shards:
        yield "ddp.overlap_grad_reduce", bucket != WHOLE, True
    if bucket not in (None, WHOLE) and (outline.given(f"{_OPTION}bucket_size") or "ddp.bucket_size" in base):
        yield "ddp.bucket_size", bucket, None


def _experts(outline: Outline, base: Mapping[str, Any]) -> Iterator[Wanted]:
    if not outline.settled.has_experts:
        return
    pads = outline.value(f"{_OPTION}moe_router_padding_for_quantization") is True
    older = base.get(PADS) is True
    yield PADS, older and pads, False
    yield "model.moe_router_padding_for_quantization", pads and not older, False
    if not pads:
        outline.as_without(f"{_OPTION}moe_router_padding_for_quantization")
    kind = outline.value(f"{_OPTION}moe_token_dispatcher_type")
    yield "model.moe_token_dispatcher_type", kind, None
    if kind == "flex":
        yield "model.moe_flex_dispatcher_backend", outline.value(f"{_OPTION}moe_flex_dispatcher_backend"), None
    router = outline.given(f"{_OPTION}moe_router_dtype")
    yield "model.moe_router_dtype", router, None
    shared = outline.given(f"{_OPTION}moe_shared_expert_overlap")
    yield "model.moe_shared_expert_overlap", shared is True, False
    if shared is False:
        outline.as_without(f"{_OPTION}moe_shared_expert_overlap")
    yield from wanted_stash(outline)
    routing: Any = outline.given("training.routing")
    capacity = routing.get("capacity_factor") if isinstance(routing, Mapping) else None
    yield "model.moe_expert_capacity_factor", capacity, None
    if capacity is not None:
        yield "model.moe_pad_expert_input_to_capacity", routing.get("pad", True), False
    yield "model.moe_router_force_load_balancing", routing == "balanced", False


def _rest(outline: Outline) -> Iterator[Wanted]:
    """Loss and CUDA graphs."""
    loss, fuses = outline.value("training.loss"), outline.given(f"{_OPTION}cross_entropy_loss_fusion")
    yield "model.cross_entropy_loss_fusion", fuses is not False, True
    if fuses is True:
        outline.as_without(f"{_OPTION}cross_entropy_loss_fusion")
    if fuses is not False:
        yield "model.cross_entropy_fusion_impl", "te" if loss == "te" else "native", None
    impl = outline.given(f"{_OPTION}cuda_graph_impl") or "none"
    yield "model.cuda_graph_impl", impl, "none"
    if outline.given(f"{_OPTION}cuda_graph_impl") == "none":
        outline.as_without(f"{_OPTION}cuda_graph_impl")
    if impl != "none":
        yield "model.cuda_graph_scope", outline.given(f"{_OPTION}cuda_graph_scope"), None
        yield "model.cuda_graph_warmup_steps", outline.given(f"{_OPTION}cuda_graph_warmup_steps") or 3, 3


def _rows(outline: Outline, base: Mapping[str, Any]) -> Iterator[Wanted]:
    """The reader's rows; one without a word of the scenario's has what the simulation has in any case.

    Bridge refuses some switches beside other layers, so a choice of the simulation's is written only against a recipe's
    own.
    """
    for row in SAID:
        if not isinstance(row, Says) or row.key == "optimizer.optimizer":
            continue
        if row.scenario in outline.settled.idle:
            continue
        value = outline.value(row.scenario)
        usual = next(iter(row.idle), None)
        if row.scenario not in outline.given_keys and (row.key not in base or (value is None and usual is None)):
            apart = row.key not in base and str(base.get("model.hf_model_id")).lower().startswith(TURNED_APART)
            if row.key == _ROTATION and (base.get(row.key) or apart):  # fused unless it is false (operators/megatron)
                outline.counts_as(row.scenario, True)  # noqa: FBT003 - a value
                yield row.key, True, False if apart else None
            continue
        if row.scenario == "training.optimizer.master" and value == "auto":
            value = usual
        if row.scenario in outline.given_keys and usual is not None and value == usual:
            outline.as_without(row.scenario)
        yield row.key, usual if value is None else value, usual


def _adapters(outline: Outline, base: Mapping[str, Any]) -> Iterator[Wanted]:
    """Adapters; a scenario without targets has the six names that recipes give."""
    yield "peft.dim", outline.value("training.lora.rank"), 32
    alpha = outline.value("training.lora.alpha")
    if isinstance(alpha, float) and not alpha.is_integer():
        outline.refuse("training.lora.alpha", "Bridge's alpha is a whole number (peft/lora.py)")
    yield "peft.alpha", int(alpha), 32
    yield "peft.dropout", outline.value("training.lora.dropout"), 0
    targets: Any = outline.given("training.lora.target_modules")
    if targets in (None, "auto") and base.get("peft.target_modules"):
        outline.counts_as("training.lora.target_modules", [*DEFAULT_TARGETS])
        targets = [*DEFAULT_TARGETS]
    yield "peft.target_modules", None if targets == "auto" else targets, None
    yield "peft.exclude_modules", outline.given("training.lora.exclude_modules"), None
    for name in ("use_dora", "dropout_position"):
        outline.value(f"training.lora.{name}")
