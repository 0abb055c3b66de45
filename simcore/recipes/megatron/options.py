"""Framework options of Megatron's arguments: overlap, kernels, dispatch of tokens, CUDA graphs, Megatron-FSDP.

Written where they differ from Megatron-Bridge's recipes, whose defaults `framework: megatron` stands for; overlap and
dispatcher always.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.megatron.fields import Setting, Writer
from simcore.recipes.megatron.without_effect import PARAMS_NORM

__all__ = ["FSDP", "OF_EXPERTS", "STASH", "SWITCHES", "SWITCHES_OF_BUFFERS", "write_options"]

_OPTION: Final = "framework_options."
SWITCHES: Final = {  # option: (field, as the simulation has it)
    "deterministic_mode": ("deterministic_mode", False),
    "log_num_zeros_in_grad": ("log_num_zeros_in_grad", False),
    "masked_softmax_fusion": ("masked_softmax_fusion", True),
    "gradient_accumulation_fusion": ("gradient_accumulation_fusion", True),
    "create_attention_mask": ("create_attention_mask_in_dataloader", False),
    "tp_comm_overlap": ("tp_comm_overlap", False),
    "overlap_moe_expert_parallel_comm": ("overlap_moe_expert_parallel_comm", False),
    "delay_wgrad_compute": ("delay_wgrad_compute", False),
    "use_transformer_engine_op_fuser": ("use_transformer_engine_op_fuser", False),
    "defer_embedding_wgrad_compute": ("defer_embedding_wgrad_compute", False),
}
STASH: Final = {"moe_paged_stash_page_size": 64, "moe_paged_stash_buffer_size_factor_cuda": 1.1,
                "moe_paged_stash_buffer_size_factor_cpu": 0.0}
OF_EXPERTS: Final = {"moe_grouped_gemm": True, "moe_permute_fusion": True}
SWITCHES_OF_BUFFERS: Final = {
    "fsdp_db_use_persist_buf_on_alloc_fail": "persistent buffers where units share none",
    "megatron_fsdp_max_pool_double_buffer": "shared buffers of the largest size",
    "megatron_fsdp_enable_fine_grained_param_gather": "parameters gathered module by module"}
"""Switches of Megatron-FSDP's buffers that no scenario has."""
FSDP: Final = {"fsdp_double_buffer": False, "nccl_ub": False, "keep_fp8_transpose_cache": False,
                "init_model_with_meta_device": False, "calculate_per_token_loss": False, "log_params_norm": False}


def write_options(writer: Writer) -> None:
    """Writes the options of a run; those of another framework or of experts are listed where they do nothing."""
    fields = writer.fields
    fsdp = fields.flag("use_megatron_fsdp")
    if fsdp.value:
        writer.write("framework", "megatron_fsdp", fsdp)
    else:
        writer.draft.infer("framework", "megatron", "arguments of Megatron", *fsdp.taken)
    for option, (name, usual) in SWITCHES.items():
        setting = fields.flag(name)
        writer.write_other(f"{_OPTION}{option}", setting.value, usual, setting)
    deferred = fields.integer("wgrad_deferral_limit")
    writer.write_other(f"{_OPTION}wgrad_deferral_limit", deferred.value or 0, 0, deferred)
    _write_overlap(writer, shards=bool(fsdp.value))
    _write_kernels(writer)
    _write_experts(writer)
    _write_graphs(writer)
    _write_fsdp(writer, is_on=fsdp.value)
    parallel, tp = fields.flag("sequence_parallel"), fields.integer("tensor_model_parallel_size")
    on = parallel.value and (tp.value or 1) > 1
    rule = "" if on == parallel.value else "--sequence-parallel is switched off where tp is 1 (validate_args)"
    writer.write("training.sequence_parallel", on, parallel, *((tp,) if rule else ()), rule=rule)


def _write_overlap(writer: Writer, *, shards: bool) -> None:
    fields = writer.fields
    grads, params = fields.flag("overlap_grad_reduce"), fields.flag("overlap_param_gather")
    sizes = {"bucket_size": fields.integer("ddp_bucket_size"), "num_buckets": fields.integer("ddp_num_buckets")}
    scatters = fields.flag("use_distributed_optimizer").value and fields.text("optimizer").value != "muon"
    if shards:
        writer.use(grads, params, why="Megatron-FSDP gathers and reduces beside products by itself")
        for name, size in sizes.items():
            writer.write_other(f"{_OPTION}{name}", size.value, None, size)
        return
    writer.write(f"{_OPTION}overlap_grad_reduce", grads.value, grads)
    if params.value and not grads.value:
        writer.draft.fail(params.taken[0].where, "Must use --overlap-param-gather with --overlap-grad-reduce "
                                                 "(Megatron-LM training/arguments.py:1028)")
    if scatters or params.value:
        writer.write(f"{_OPTION}overlap_param_gather", params.value, params)
    else:
        writer.use(params, why="there is no distributed optimizer")
    for name, size in sizes.items():
        if grads.value:
            writer.write_other(f"{_OPTION}{name}", size.value, None, size)
        else:
            writer.idle("without --overlap-grad-reduce there is one bucket", size)


def _write_kernels(writer: Writer) -> None:
    fields = writer.fields
    impl, backend, flash = (fields.text("transformer_impl"), fields.text("attention_backend"),
                            fields.flag("use_flash_attn"))
    writer.write_other(f"{_OPTION}transformer_impl", impl.value, "transformer_engine", impl)
    if backend.value in (None, "auto") and flash.value:
        writer.write(f"{_OPTION}attention_backend", "flash", flash)
        writer.use(backend, why="--use-flash-attn says it")
    else:
        writer.write_other(f"{_OPTION}attention_backend", backend.value or "auto", "auto", backend)
        writer.idle("--attention-backend says it", flash)
    gated, biased = fields.flag("swiglu"), fields.flag("add_bias_linear")
    gelu, silu = fields.flag("bias_gelu_fusion"), fields.flag("bias_swiglu_fusion")
    fused = silu if gated.value else gelu
    writer.use(silu, gelu, why="whether bias and activation are one kernel, of the activation that the model has")
    _write_activation(writer, fused, is_biased=biased.value, is_gated=gated.value)
    rope, latent = fields.flag("apply_rope_fusion"), fields.flag("multi_latent_attention")
    kind = fields.text("position_embedding_type").value
    if kind == "rope" or fields.flag("use_rotary_position_embeddings").value:
        writer.write_other(f"{_OPTION}apply_rope_fusion", rope.value, not latent.value, rope)
    else:
        writer.idle("it is switched off where positions are not rope (validate_args)", rope)
    _write_exchange(writer)


def _write_exchange(writer: Writer) -> None:
    """Exchange between context parallel ranks."""
    kind, cp = writer.fields.words("cp_comm_type"), writer.fields.integer("context_parallel_size")
    sizes = writer.fields.words("hierarchical_context_parallel_sizes")
    if (cp.value or 1) > 1 and set(kind.value) == {"a2a+p2p"}:
        writer.write_other(f"{_OPTION}hierarchical_context_parallel_sizes",
                           [int(size) for size in sizes.value if size.isdigit()], [], sizes)
    else:
        writer.idle("it is read with --cp-comm-type a2a+p2p and several context parallel ranks", sizes)
    if len(set(kind.value)) > 1:
        writer.refuse("exchanges between context parallel ranks that differ by layers", kind)
    elif (cp.value or 1) > 1:
        word = "".join(kind.value[:1]).replace("allgather", "all_gather")
        writer.write_other(f"{_OPTION}cp_comm_type", word, "p2p", kind)
    else:
        writer.idle("there is one context parallel rank", kind)


def _write_activation(writer: Writer, fused: Setting[bool], *, is_biased: bool, is_gated: bool) -> None:
    """Bias and activation in one kernel; without biases GELU is one kernel by itself.

    Without the key a Qwen has two kernels, as Bridge's providers of the family leave them, any other model one.
    """
    key, model = f"{_OPTION}bias_activation_fusion", writer.draft.values.get("model", {})
    if is_biased or is_gated:
        writer.write_other(key, fused.value, not str(model.get("config", "")).startswith("qwen"), fused)


def _write_experts(writer: Writer) -> None:
    fields = writer.fields
    kind, deepep = fields.text("moe_token_dispatcher_type"), fields.flag("moe_enable_deepep")
    backend, router = fields.text("moe_flex_dispatcher_backend"), fields.text("moe_router_dtype")
    shared, squared = fields.flag("moe_shared_expert_overlap"), fields.flag("use_fused_weighted_squared_relu")
    capacity, stash = fields.number("moe_expert_rank_capacity_factor"), fields.flag("moe_paged_stash")
    paging: dict[str, Setting[Any]] = {
        name: fields.integer(name) if name.endswith("page_size") else fields.number(name) for name in STASH}
    laid = fields.integer("moe_mlp_glu_interleave_size")
    settings = [kind, deepep, backend, router, shared, squared, capacity, stash, laid, *paging.values(),
                *(fields.flag(name) for name in OF_EXPERTS)]
    if not fields.integer("num_experts").value:
        writer.idle("the model has no experts", *settings)
        return
    writer.write(f"{_OPTION}moe_token_dispatcher_type", kind.value, kind)
    if kind.value == "flex":
        writer.write(f"{_OPTION}moe_flex_dispatcher_backend", backend.value, backend, deepep)
    else:
        writer.idle("it is read with the dispatcher flex", backend, deepep)
    for name, usual in OF_EXPERTS.items():
        writer.write_other(f"{_OPTION}{name}", fields.flag(name).value, usual, fields.flag(name))
    writer.write_other(f"{_OPTION}moe_router_dtype", router.value, None, router)
    writer.write_other(f"{_OPTION}moe_shared_expert_overlap", shared.value, False, shared)  # noqa: FBT003
    writer.write_other(f"{_OPTION}moe_expert_rank_capacity_factor", capacity.value, None, capacity)
    writer.write_other(f"{_OPTION}moe_paged_stash", stash.value, False, stash)  # noqa: FBT003
    for name, least in STASH.items():
        if stash.value:
            writer.write_other(f"{_OPTION}{name}", paging[name].value, least, paging[name])
        else:
            writer.idle("it is read with --moe-paged-stash", paging[name])
    if laid.value and not fields.flag("use_transformer_engine_op_fuser").value:
        writer.refuse("experts' halves that are laid in turns, and put in order without the operation fuser", laid)
    else:
        writer.idle("the fused experts take their halves in turns", laid)
    if fields.flag("squared_relu").value:
        writer.write(f"{_OPTION}use_fused_weighted_squared_relu", squared.value, squared)
    else:
        writer.idle("activations are no squared ReLU", squared)


def _write_graphs(writer: Writer) -> None:
    fields = writer.fields
    impl, old, external = (fields.text("cuda_graph_impl"), fields.flag("enable_cuda_graph"),
                           fields.flag("external_cuda_graph"))
    scope, modules, warm = (fields.words("cuda_graph_scope_deprecated"), fields.words("cuda_graph_modules"),
                            fields.integer("cuda_graph_warmup_steps"))
    value = "local" if old.value else "transformer_engine" if external.value else impl.value
    writer.write_other(f"{_OPTION}cuda_graph_impl", value, "none", impl, old, external)
    named = [name for name in (modules.value or scope.value) if name != "full"]
    if value in (None, "none"):
        writer.idle("nothing is captured without --cuda-graph-impl", scope, modules, warm)
        return
    writer.use(scope, modules, why="everything that the implementation captures")
    if named:
        writer.write(f"{_OPTION}cuda_graph_scope", named, modules if modules.value else scope)
    writer.write_other(f"{_OPTION}cuda_graph_warmup_steps", warm.value, 3, warm)


def _write_fsdp(writer: Writer, *, is_on: bool) -> None:
    """Megatron-FSDP's own arguments."""
    fields = writer.fields
    inner, outer = fields.text("data_parallel_sharding_strategy"), fields.text("outer_dp_sharding_strategy")
    unit = fields.integer("suggested_communication_unit_size")
    formats = {name: fields.text(f"megatron_fsdp_{name}_dtype") for name in ("main_params", "main_grads", "grad_comm")}
    others: list[tuple[Setting[Any], Any, str]] = [
        *((fields.flag(name), False, what) for name, what in SWITCHES_OF_BUFFERS.items()),
        (fields.integer("megatron_fsdp_version"), 1, "the second implementation of Megatron-FSDP"),
        (formats["main_params"], "fp32", "masters in another format than fp32")]
    switches = {name: fields.flag(name) for name in FSDP}
    own = ("calculate_per_token_loss", "log_params_norm")
    if not is_on:
        writer.idle("read with --use-megatron-fsdp alone", inner, outer, unit, formats["main_grads"],
                    formats["grad_comm"], *(setting for setting, _, _ in others),
                    *(setting for name, setting in switches.items() if name not in (*own, "nccl_ub")))
        writer.idle("a factor of the loss", switches["calculate_per_token_loss"])
        _write_norm(writer, switches["log_params_norm"])
        writer.write_other(f"{_OPTION}nccl_ub", switches["nccl_ub"].value, False, switches["nccl_ub"])  # noqa: FBT003
        return
    writer.write(f"{_OPTION}data_parallel_sharding_strategy", inner.value, inner)
    writer.write_other(f"{_OPTION}outer_dp_sharding_strategy", outer.value, "no_shard", outer)
    writer.write_other(f"{_OPTION}suggested_communication_unit_size", unit.value, None, unit)
    for setting, usual, what in others:
        if setting.taken and setting.value not in (usual, "auto"):
            writer.refuse(what, setting)
        else:
            writer.use(setting, why="as Megatron-FSDP is simulated without it")
    _write_gradients(writer, formats["main_grads"], formats["grad_comm"])
    for name, setting in switches.items():
        writer.write_other(f"{_OPTION}{name}", setting.value, FSDP[name], setting)


def _write_norm(writer: Writer, norm: Setting[bool]) -> None:
    """Lists the norm of all parameters, which runs log together with zeros of gradients (`host.statistics`)."""
    if norm.value and not writer.fields.flag("log_num_zeros_in_grad").value:
        writer.unmodelled(PARAMS_NORM, norm)
    else:
        writer.idle("in the time of --log-num-zeros-in-grad" if norm.value else "off", norm)


def _write_gradients(writer: Writer, kept: Setting[str | None], sent: Setting[str | None]) -> None:
    """Formats of gradients: main's Megatron-FSDP reads its own arguments, and no other."""
    formats: Any = writer.draft.values.get("training", {}).get("precision", {})
    value, rule = kept.value, ""
    if value in (None, "auto"):
        writer.use(kept, sent, why="that of parameters")
        if "framework_version" not in writer.draft.values:  # the release reads grad_reduce_in_fp32
            return
        value = formats.get("params") or {"fp8": "bf16", "fp4": "bf16"}.get(formats["compute"], formats["compute"])
        rule = "--megatron-fsdp-main-grads-dtype auto: that of parameters"
    writer.write("training.precision.main_grads", value, kept, rule=rule)
    if sent.value in (None, "auto"):
        writer.write("training.precision.grad_reduce", value, kept, sent, rule=rule)
    else:
        writer.write("training.precision.grad_reduce", sent.value, sent)
