"""Writes scenarios as scripts with Megatron-LM's arguments: every choice that its defaults make in another way."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from simcore.recipes.megatron.argument_puts import ArgumentPuts
from simcore.recipes.megatron.layout import COUNTED, DEGREES, SPLITS
from simcore.recipes.megatron.options import FSDP, OF_EXPERTS, STASH, SWITCHES
from simcore.recipes.megatron.written_model import is_hybrid, write_model
from simcore.recipes.megatron.written_step import write_step
from simcore.recipes.outline import Outline
from simcore.recipes.recipe_writer import Job, RecipeWriter

__all__ = ["WRITER"]

_OPTION: Final = "framework_options."
_PROGRAM: Final = "program"
"""Key of the training script among those of an outline, beside arguments."""
_VIRTUAL: Final = "training.pipeline.virtual_stages"


def _write(outline: Outline) -> None:
    puts = ArgumentPuts(outline, str(outline.value("framework_version")))
    outline.put(_PROGRAM, "pretrain_gpt.py" if not is_hybrid(puts) else "pretrain_hybrid.py" if puts.is_main else
                "pretrain_mamba.py")
    outline.put("--use-mcore-models", True)  # noqa: FBT003
    _refuse_adapters(outline)
    write_model(puts)
    _write_layout(puts)
    _write_batches(puts)
    write_step(puts)
    _write_options(puts)
    if not outline.has_option("data_parallel_sharding_strategy"):
        outline.set_variable("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if outline.given(f"{_OPTION}deterministic_mode") is True:
        outline.set_variable("NCCL_ALGO", "Ring")
        outline.set_variable("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")
    outline.put("--mock-data", True, stand_in=True)  # noqa: FBT003
    outline.put("--train-iters", 10, stand_in=True)
    outline.put("--lr", 1e-4, stand_in=True)


def _refuse_adapters(outline: Outline) -> None:
    outline.value("implementation")
    method = outline.value("training.method")
    if method != "full":
        outline.refuse("training.method", f"{method}: Megatron-LM's arguments have no adapters (--to bridge has)")
        outline.said.update(key for key in outline.given_keys if key.startswith("training.lora."))


def _write_layout(puts: ArgumentPuts) -> None:
    outline = puts.outline
    for axis, field in DEGREES.items():
        puts.put(field, outline.value(f"mesh.{axis}"), f"mesh.{axis}")
    puts.put("num_distributed_optimizer_instances", outline.value("mesh.dp_replicate"), "mesh.dp_replicate")
    outline.value("mesh.dp_shard")
    if outline.settled.has_experts:
        puts.put("expert_model_parallel_size", outline.value("mesh.ep"), "mesh.ep")
        puts.put("expert_tensor_parallel_size", outline.value("mesh.etp"), "mesh.etp")
    else:
        outline.value("mesh.ep")
    puts.put("sequence_parallel", outline.value("training.sequence_parallel"), "training.sequence_parallel")
    outline.value("training.pipeline.schedule")
    outline.value("training.pipeline.layers")
    for option, field in SPLITS.items():
        puts.put(field, outline.given(f"{_OPTION}{option}"), f"{_OPTION}{option}")
    for name in COUNTED:
        puts.say(name, f"{_OPTION}{name}", False)  # noqa: FBT003
    layout = outline.given(f"{_OPTION}pipeline_model_parallel_layout")
    puts.put("pipeline_model_parallel_layout", layout, f"{_OPTION}pipeline_model_parallel_layout")
    if outline.value(_VIRTUAL) > 1 and layout is None:
        puts.put("num_virtual_stages_per_pipeline_rank", outline.value(_VIRTUAL), _VIRTUAL)


def _write_batches(puts: ArgumentPuts) -> None:
    for field, key in (("seq_length", "seq_len"), ("micro_batch_size", "micro_batch_size"),
                       ("global_batch_size", "global_batch_size")):
        puts.put(field, puts.outline.value(f"training.{key}"), f"training.{key}")
    puts.outline.value("training.lengths")
    routing = puts.outline.given("training.routing")
    if routing == "balanced":
        puts.put("moe_router_force_load_balancing", True, "training.routing")  # noqa: FBT003
    elif isinstance(routing, Mapping) and "capacity_factor" in routing:
        puts.put("moe_expert_capacity_factor", routing["capacity_factor"], "training.routing")
        puts.put("moe_pad_expert_input_to_capacity", routing.get("pad", True), "training.routing")


def _write_options(puts: ArgumentPuts) -> None:
    outline = puts.outline
    shards = outline.has_option("data_parallel_sharding_strategy")
    puts.put("use_megatron_fsdp", shards, "framework")
    if shards and puts.is_main:  # d98e8a64 training/arguments.py:1169 asks for it
        puts.put("ckpt_format", "fsdp_dtensor", "framework")
    for option, (field, usual) in SWITCHES.items():
        puts.say(field, f"{_OPTION}{option}", usual)
    puts.put("wgrad_deferral_limit", outline.given(f"{_OPTION}wgrad_deferral_limit") or 0,
             f"{_OPTION}wgrad_deferral_limit")
    if not shards:
        for name in ("overlap_grad_reduce", "overlap_param_gather"):  # the framework chooses where there is a choice
            puts.put(name, outline.value(f"{_OPTION}{name}") is True, f"{_OPTION}{name}")
        if outline.value(f"{_OPTION}overlap_param_gather") and not outline.value(f"{_OPTION}overlap_grad_reduce"):
            outline.refuse(f"{_OPTION}overlap_param_gather", "Must use --overlap-param-gather with --overlap-grad-"
                                                             "reduce (Megatron-LM training/arguments.py:1028)")
        if not outline.value(f"{_OPTION}use_distributed_optimizer"):
            outline.as_without(f"{_OPTION}overlap_param_gather")
        puts.say("nccl_ub", f"{_OPTION}nccl_ub", False)  # noqa: FBT003
    for name in ("bucket_size", "num_buckets"):
        puts.put(f"ddp_{name}", outline.given(f"{_OPTION}{name}"), f"{_OPTION}{name}")
    puts.say("transformer_impl", f"{_OPTION}transformer_impl", "transformer_engine")
    puts.put("attention_backend", outline.given(f"{_OPTION}attention_backend"), f"{_OPTION}attention_backend")
    if outline.given(f"{_OPTION}attention_backend") == "auto":
        outline.as_without(f"{_OPTION}attention_backend")
    _write_kernels(puts)
    _write_dispatch(puts)
    _write_graphs(puts)
    if shards:
        _write_fsdp(puts)


def _write_kernels(puts: ArgumentPuts) -> None:
    outline = puts.outline
    gated = "--swiglu" in outline.puts
    key = f"{_OPTION}bias_activation_fusion"
    fused = outline.value(key)
    puts.put("bias_swiglu_fusion" if gated else "bias_gelu_fusion", True if fused is None else fused, key)
    key = f"{_OPTION}apply_rope_fusion"
    turns, usual = outline.value(key), "--multi-latent-attention" not in outline.puts
    if key not in outline.settled.idle:
        puts.put("apply_rope_fusion", usual if turns is None else turns, key)
        if turns == usual:
            outline.as_without(key)
    exchange = outline.given(f"{_OPTION}cp_comm_type")
    if exchange is not None and outline.value("mesh.cp") > 1:
        puts.put("cp_comm_type", [exchange.replace("all_gather", "allgather")], f"{_OPTION}cp_comm_type")
    sizes = outline.given(f"{_OPTION}hierarchical_context_parallel_sizes")
    if sizes is not None:
        puts.put("hierarchical_context_parallel_sizes", sizes, f"{_OPTION}hierarchical_context_parallel_sizes")
    if exchange == "p2p":
        outline.as_without(f"{_OPTION}cp_comm_type")


def _write_dispatch(puts: ArgumentPuts) -> None:
    outline = puts.outline
    if not outline.settled.has_experts:
        return
    kind = outline.value(f"{_OPTION}moe_token_dispatcher_type")
    puts.put("moe_token_dispatcher_type", kind, f"{_OPTION}moe_token_dispatcher_type")
    if kind == "flex":
        puts.put("moe_flex_dispatcher_backend", outline.value(f"{_OPTION}moe_flex_dispatcher_backend"),
                 f"{_OPTION}moe_flex_dispatcher_backend")
    for name, usual in OF_EXPERTS.items():
        puts.say(name, f"{_OPTION}{name}", usual)
    puts.put("moe_router_dtype", outline.given(f"{_OPTION}moe_router_dtype"), f"{_OPTION}moe_router_dtype")
    puts.say("moe_shared_expert_overlap", f"{_OPTION}moe_shared_expert_overlap", False)  # noqa: FBT003
    puts.put("moe_expert_rank_capacity_factor", outline.given(f"{_OPTION}moe_expert_rank_capacity_factor"),
             f"{_OPTION}moe_expert_rank_capacity_factor")
    puts.say("moe_paged_stash", f"{_OPTION}moe_paged_stash", False)  # noqa: FBT003
    for name, paging in STASH.items():
        puts.say(name, f"{_OPTION}{name}", paging)
    key = f"{_OPTION}use_fused_weighted_squared_relu"
    if "--squared-relu" in outline.puts:
        fused = outline.given(key)
        puts.put("use_fused_weighted_squared_relu", fused is not False, key)


def _write_graphs(puts: ArgumentPuts) -> None:
    outline = puts.outline
    impl = outline.given(f"{_OPTION}cuda_graph_impl")
    if impl == "none":
        outline.as_without(f"{_OPTION}cuda_graph_impl")
    if impl in (None, "none"):
        return
    puts.put("cuda_graph_impl", impl, f"{_OPTION}cuda_graph_impl")
    scope = outline.given(f"{_OPTION}cuda_graph_scope")
    if scope is not None:
        puts.put("cuda_graph_scope_deprecated", scope if isinstance(scope, list) else [scope],
                 f"{_OPTION}cuda_graph_scope")
    puts.say("cuda_graph_warmup_steps", f"{_OPTION}cuda_graph_warmup_steps", 3)


def _write_fsdp(puts: ArgumentPuts) -> None:
    outline = puts.outline
    key = f"{_OPTION}data_parallel_sharding_strategy"
    puts.put("data_parallel_sharding_strategy", outline.value(key), key)
    puts.say("outer_dp_sharding_strategy", f"{_OPTION}outer_dp_sharding_strategy", "no_shard")
    puts.put("suggested_communication_unit_size", outline.given(f"{_OPTION}suggested_communication_unit_size"),
             f"{_OPTION}suggested_communication_unit_size")
    for name, usual in FSDP.items():
        puts.say(name, f"{_OPTION}{name}", usual)


def _text(keys: Mapping[str, Any], job: Job) -> str:
    """A shell script: variables, a list of arguments, a line each, and the command."""
    lines = [f"  {name}{_words(value)}\n" for name, value in keys.items() if name != _PROGRAM]
    command = job.torchrun(f'{keys[_PROGRAM]} "${{ARGUMENTS[@]}}"')
    return f"{job.exports()}ARGUMENTS=(\n{''.join(lines)})\n{command}"


def _words(value: Any) -> str:
    if isinstance(value, bool):  # a switch, whose name says which
        return ""
    return "".join(f" {shlex.quote(str(one))}" for one in (value if isinstance(value, list) else [value]))


def _launch(job: Job) -> str:
    del job
    return ""


WRITER: Final = RecipeWriter(".sh", ("megatron", "megatron_fsdp"), _write, _launch, _text)
