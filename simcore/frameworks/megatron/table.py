"""Megatron-Core with Megatron-Bridge: tensor, pipeline, context and expert parallelism with the distributed optimizer.

Versions: core 0.16.1 with Bridge 0.3.1, and the main branches of 2026-08-22 ("main 2026-08-22"). Parameters and main
gradients are whole on every data-parallel rank, in flat buffers; masters and moments are cut over the dense
data-parallel ranks (context parallel ranks included) and, for experts, over the expert-data-parallel ones.
"""

from __future__ import annotations

from simcore.frameworks.common.checkpoint_files import megatron_files
from simcore.frameworks.megatron.checks import check, check_fuser, check_overlap, check_shared_overlap
from simcore.frameworks.megatron.cuda_graphs import OPTIONS as GRAPH_OPTIONS
from simcore.frameworks.megatron.cuda_graphs import assumptions as graph_assumptions
from simcore.frameworks.megatron.cuda_graphs import graphs_of
from simcore.frameworks.megatron.fp8 import OPTIONS as FP8_OPTIONS
from simcore.frameworks.megatron.fp8 import (
    Fp8,
    check_shapes,
    check_user_buffers,
    fp8_of,
    quantized,
    run_options,
    user_buffer_bytes,
)
from simcore.frameworks.megatron.fp8 import assumptions as fp8_assumptions
from simcore.frameworks.megatron.layerwise_optimizer import assumptions as muon_assumptions
from simcore.frameworks.megatron.layerwise_optimizer import dealt
from simcore.frameworks.megatron.pipeline_layout import OPTION as LAYOUT
from simcore.frameworks.megatron.precision import Formats, formats
from simcore.frameworks.megatron.recompute import assumptions as recompute_assumptions
from simcore.frameworks.megatron.recompute import check_groups, checkpoint, kept_whole, together
from simcore.frameworks.megatron.rules import rules, shard_axes
from simcore.frameworks.megatron.stages import OVERLAP, overlaps, schedule, stages
from simcore.frameworks.megatron.strategy import MegatronDdpStrategy
from simcore.inputs.scenario import Mesh as Degrees
from simcore.models.blocks import Attention, LatentAttention
from simcore.models.graph import ModelGraph
from simcore.models.network import Edge
from simcore.placement.framework import Framework, Optimizer, Padding
from simcore.placement.job import Job
from simcore.placement.libraries import KernelLibraries
from simcore.units import dtype_bytes

__all__ = ["OPTIONS", "QLORA_REFUSAL", "VERSIONS", "default_etp", "in_fp8", "table", "table_of"]

VERSIONS = ("core 0.16.1 + bridge 0.3.1", "main 2026-08-22")
QLORA_REFUSAL = (
    "a base in 4 bits: bitsandbytes packs torch.nn.Linear, and Megatron's linears are TransformerEngine's or its own, "
    "cut over tp; nothing in core or bridge packs those",
    "bridge 0.3.1 peft/lora_layers.py:701 (quant_state of a nn.Linear alone), core 0.16.1 tensor_parallel/layers.py")
"""Why no qlora: the message, and the rule."""
OPTIONS = {
    "use_distributed_optimizer": (True, False),
    "use_precision_aware_optimizer": (True, False),
    "store_param_remainders": (True, False),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "bucket_size": (None, int),
    "num_layers_in_first_pipeline_stage": (None, int),
    "num_layers_in_last_pipeline_stage": (None, int),
    "account_for_embedding_in_pipeline_split": (True, False),
    "account_for_loss_in_pipeline_split": (True, False),
    "microbatch_group_size_per_vp_stage": (None, int),
    LAYOUT: (None, str, list),
    OVERLAP: (True, False),
    "delay_wgrad_compute": (True, False),
    "use_transformer_engine_op_fuser": (True, False),
    "moe_token_dispatcher_type": ("alltoall", "flex", "allgather"),
    "moe_grouped_gemm": (True, False),
    "moe_permute_fusion": (True, False),
    "use_fused_weighted_squared_relu": (True, False),
    "moe_flex_dispatcher_backend": ("deepep", "hybridep"),
    "bias_activation_fusion": (True, False),
    "apply_rope_fusion": (True, False),
    "moe_router_dtype": (None, "fp32"),
    "transformer_impl": ("transformer_engine", "local"),
    "attention_backend": ("auto", "flash", "fused", "unfused", "local"),
    "cross_entropy_loss_fusion": (True, False),
    "gradient_accumulation_fusion": (True, False),
    "create_attention_mask": (True, False),
    "masked_softmax_fusion": (True, False),
    "defer_embedding_wgrad_compute": (True, False),
    "wgrad_deferral_limit": (int,),
    "deterministic_mode": (True, False),
    "tp_comm_overlap": (True, False),
    "moe_shared_expert_overlap": (True, False),
    "use_layer_wise_param_layout": (True, False),
    "cp_comm_type": ("p2p", "a2a", "all_gather", "a2a+p2p"),
    **GRAPH_OPTIONS,
    **FP8_OPTIONS,
}
SOFTMAX_ROUTED = ("gpt2", "mixtral", "qwen3_moe")
TE_LOSS = ("deepseek_v2", "deepseek_v3", "qwen3_moe")
"""Families whose recipes say cross_entropy_fusion_impl: te (Bridge 0.3.1 recipes/{deepseek,moonlight,qwen})."""


DEEPSEEK = ("deepseek_v2", "deepseek_v3")
_DIRECT_QUERY = (
    "model.q_lora_rank", "null: queries without an inner rank, as the configuration says; AutoBridge alone drops the "
    "null and builds 512, unless provider.q_lora_rank = None is set as the Moonlight recipe does", "assumed",
    "Bridge 0.3.1 models/conversion/model_bridge.py:364, core 0.16.1 MLATransformerConfig.q_lora_rank, Bridge "
    "recipes/moonlight/moonlight_16b.py:59")


def default_etp(degrees: Degrees) -> int:
    """Omitted expert tensor parallelism is tp (core 0.16.1 `parallel_state.py:787`)."""
    return degrees.tp


def in_fp8(job: Job) -> ModelGraph:
    """The job's model where linears compute in fp8."""
    made = fp8_of(job, job.options(OPTIONS))
    if made is None:
        return job.graph
    graph = quantized(job.graph, job.mesh, made)
    check_shapes(job, made, graph)
    return graph


def table(job: Job) -> Framework:
    """Megatron applied to a job."""
    return table_of(job, job.options(OPTIONS))


def table_of(job: Job, options: dict[str, object]) -> Framework:
    """The table for options that are known to be Megatron's."""
    sequence_parallel = _sequence_parallel(job)
    made_stages, made_schedule = stages(job, options), schedule(job, options)
    check_groups(job, made_stages)
    check(job, sequence_parallel=sequence_parallel)
    check_overlap(job, options, sequence_parallel=sequence_parallel)
    check_shared_overlap(job, options)
    training, made, fp8 = job.scenario.training, formats(job, options), fp8_of(job, options)
    check_user_buffers(job, options, fp8)
    check_fuser(job, options)
    policies = rules(job, made)
    _note_defaults(job)
    return Framework(
        name="megatron", version=_version(job),
        rules=policies,
        units=(),
        strategy=_buckets(job, options, made, fp8),
        optimizer=Optimizer(training.optimizer.name, "te", grad_copy=made.grads != "fp32" and not made.precise,
                            late_master=made.precise and not made.offloaded),
        compute_dtype=job.compute,
        checkpoint=checkpoint(job),
        kept_whole=kept_whole(job, made_stages),
        recomputed_together=together(job),
        loss=_loss(job, options),
        sequence_parallel=sequence_parallel,
        stages=made_stages,
        schedule=made_schedule,
        frees_sent_output=True,
        keeps_received=True,
        deferred_heads=_deferred(job, options),
        dealt=dealt(job, policies, made_stages, shard_axes(job), by_parts=_by_parts(job, options)),
        options=(*_run_options(job, options, made.grads), *run_options(fp8)),
        communicators=_communicators(job),
        libraries=_libraries(job, options, fp8),
        files=megatron_files(job),
        padding=Padding(16, "Bridge 0.3.1 data/datasets/sft.py:206 pad_seq_length_to_mult, :703"),
        assumptions=(*_assumptions(job, options), *recompute_assumptions(job),
                     *muon_assumptions(job, packed=_by_parts(job, options)), *fp8_assumptions(fp8), *_of_host(made)),
    )


def _by_parts(job: Job, options: dict[str, object]) -> bool:
    """Main's default; core 0.16.1 has no such thing."""
    key, is_main = "use_layer_wise_param_layout", _version(job).startswith("main")
    if job.scenario.training.optimizer.name != "dist_muon":
        if key in options:
            raise job.illegal(f"framework_options.{key}", "it is of the layer-wise optimizer (dist_muon) alone",
                              "Megatron-LM main training/arguments.py")
        return False
    if not is_main:
        if options.get(key):
            raise job.illegal(f"framework_options.{key}", "core 0.16.1 has no such layout", "core 0.16.1 optimizer/"
                              "layer_wise_optimizer.py; use framework_version: main 2026-08-22")
        return False
    return job.flag(options, key, "Megatron-LM main training/arguments.py", default=True)


def _loss(job: Job, options: dict[str, object]) -> str:
    """The cross entropy of Bridge's recipes for the model's family; without fusion, core's own in single kernels."""
    given = job.scenario.training.loss
    if options.get("cross_entropy_loss_fusion") is False:
        if given not in ("auto", "megatron"):
            raise job.illegal("framework_options.cross_entropy_loss_fusion", f"without fusion the loss is megatron's "
                              f"own, not {given}", "core 0.16.1 models/common/language_module/language_module.py: "
                              "cross_entropy_fusion_impl is read only with cross_entropy_loss_fusion")
        return "megatron_unfused"
    fused = "te" if job.graph.architecture.family in TE_LOSS else "megatron"
    return job.auto("training.loss", given, fused, "Bridge recipes: cross_entropy_loss_fusion, "
                    f"{'te' if fused == 'te' else 'native'}")


def _deferred(job: Job, options: dict[str, object]) -> int:
    """Microbatches whose output head waits for its weight gradient until the pipeline is empty."""
    if not options.get("defer_embedding_wgrad_compute"):
        return 0
    key, rule = "framework_options.defer_embedding_wgrad_compute", "core 0.16.1 model_parallel_config.py:425"
    if job.mesh.pp == 1:
        raise job.illegal(key, "Cannot defer embedding wgrad compute when pipeline model parallel is not used", rule)
    if options.get("gradient_accumulation_fusion") is False:
        raise job.illegal(key, "Cannot defer embedding wgrad compute when gradient accumulation fusion is not used",
                          rule)
    if job.graph.leads(Edge.BRANCH, job.graph.head):
        raise job.not_yet(key, "weight gradients of a head that multi-token prediction runs too")
    if "wgrad_deferral_limit" not in options:
        raise job.not_yet(key, "without wgrad_deferral_limit every microbatch waits")
    return min(int(str(options["wgrad_deferral_limit"])), job.scenario.num_microbatches)


def _assumptions(job: Job, options: dict[str, object]) -> tuple[tuple[str, str, str, str], ...]:
    tied = job.graph.leads(Edge.COPY, job.graph.head)
    copies = (("tied embedding", "the all-reduce of its gradients over the first and last stage is left out", "assumed",
               "core 0.16.1 distributed/finalize_model_grads.py; in place, it takes no memory"),) * tied
    latent = [b.block for k in job.graph.kinds for b in k.branches if isinstance(b.block, LatentAttention)]
    if _version(job) == VERSIONS[0] and job.graph.architecture.family in DEEPSEEK and any(not b.q_rank for b in latent):
        copies = (*copies, _DIRECT_QUERY)
    if options.get(OVERLAP):
        copies = (*copies, (OVERLAP, "a backward pass before the forward pass that runs with it", "assumed",
                            "core 0.16.1 models/common/model_chunk_schedule_plan.py takes their layers in turn: at "
                            "most one layer's attention more at a time; kernels do not overlap here"))
    if options.get("delay_wgrad_compute"):
        copies = (*copies, ("delay_wgrad_compute", "memory as without it", "assumed", "core 0.16.1 models/common/"
                            "model_chunk_schedule_plan.py: weight gradients of a node wait for no more than the next "
                            "nodes of its layer, and what they are made of with them"))
    if _fuses_experts(job, options) and job.has_experts:
        copies = (*copies, ("use_transformer_engine_op_fuser", "activation and casts between the products of experts "
                            "take no time, and memory is as without it", "assumed", "TransformerEngine 2.16 to 2.18 "
                            "pytorch/ops: fused grouped MLP for mxfp8"))
    if options.get("moe_shared_expert_overlap"):
        copies = (*copies, ("moe_shared_expert_overlap", "what layers keep is as without it", "assumed",
                            "core 0.16.1 moe/shared_experts.py: the same kernels, on a stream of their own"))
    copies = (*copies, *graph_assumptions(job, options))
    if options.get("moe_flex_dispatcher_backend") != "hybridep":
        return copies
    return (*copies, ("moe_flex_dispatcher_backend", "recorded like deepep", "assumed",
             "HybridEP's buffers come from cudaMalloc, outside torch (DeepEP branch hybrid-ep, allocator.cu)"),)


def _of_host(made: Formats) -> tuple[tuple[str, str, str, str], ...]:
    """How the step on the host is timed."""
    if not made.offloaded:
        return ()
    return (("time of offload", "gradients are copied, the CPU updates at 0.7 of its memory bandwidth, parameters are "
             "copied back, one after the other", "assumed", "core 0.16.1 optimizer/cpu_offloading/hybrid_optimizer.py "
             "without overlap_cpu_optimizer_d2h_h2d; torch 2.13 optim/adam.py; no time is published"),)


def _libraries(job: Job, options: dict[str, object], fp8: Fp8 | None) -> KernelLibraries:
    """TE's specs, or core's own with TE for experts alone; core 0.16.1 trains in a container of early 2026."""
    local = options.get("transformer_impl") == "local"
    flex = options.get("moe_token_dispatcher_type") == "flex"
    return KernelLibraries(
        date="2026-08" if _version(job).startswith("main") else "2026-01", te_linears=job.has_experts or not local,
        te_grouped=not local and options.get("moe_grouped_gemm") is not False,
        te_overlap=options.get("tp_comm_overlap") is True, core_buffers=True,
        core_attention=local,
        user_buffer_bytes=user_buffer_bytes(fp8) if options.get("tp_comm_overlap") else 0,
        dispatcher=str(options.get("moe_flex_dispatcher_backend", "deepep")) if flex else "nccl",
        attention="attention", module_calls=True, launches_each=not _fuses_experts(job, options),
        graphs=graphs_of(job, options), fills=options.get("deterministic_mode") is True,
        waits_for_messages=job.mesh.pp > 1 and schedule(job, options).num_chunks == 1,
        overlapped=_overlapped(options), shared_beside=options.get("moe_shared_expert_overlap") is True)


def _fuses_experts(job: Job, options: dict[str, object]) -> bool:
    """Whether the products of experts and what lies between them are one operation of TransformerEngine's."""
    return options.get("use_transformer_engine_op_fuser") is True and _version(job).startswith("main")


def _overlapped(options: dict[str, object]) -> tuple[str, ...]:
    """Axes whose collectives run beside kernels of the same layer, or of another microbatch's.

    Core 0.16.1 model_parallel_config.py:265 (tp_comm_overlap), :343 (overlap_moe_expert_parallel_comm).
    """
    return ("tp",) * (options.get("tp_comm_overlap") is True) + ("ep",) * (options.get(OVERLAP) is True)


def _version(job: Job) -> str:
    given = job.scenario.framework_version
    return VERSIONS[0] if given == "auto" else given


def _sequence_parallel(job: Job) -> bool:
    given = job.scenario.training.sequence_parallel
    return job.auto("training.sequence_parallel", str(given).lower(), str(job.mesh.tp > 1).lower(),
                    "Bridge 0.3.1 recipes/nemotronh/nemotron_3_nano.py:46; core needs tp > 1") == "true"


def _note_defaults(job: Job) -> None:
    if job.scenario.mesh.etp is None and job.has_experts:
        job.auto("mesh.etp", "auto", str(job.mesh.etp), "core 0.16.1 parallel_state.py:787: as tp")
    job.auto("training.optimizer.implementation", job.scenario.training.optimizer.implementation, "te",
             "core 0.16.1 optimizer/__init__.py: TransformerEngine's FusedAdam and FusedSGD")


def _run_options(job: Job, options: dict[str, object], grads: str) -> tuple[tuple[str, str], ...]:
    dispatcher = str(options.get("moe_token_dispatcher_type", "auto"))
    if job.has_experts:
        dispatcher = job.auto("framework_options.moe_token_dispatcher_type", dispatcher, "alltoall",
                              "Bridge 0.3.1 models/nemotronh/nemotron_h_provider.py:54")
    if options.get("moe_flex_dispatcher_backend") is not None and dispatcher != "flex":
        raise job.illegal("framework_options.moe_flex_dispatcher_backend", "this backend is only supported with flex "
                          "token dispatcher: moe_token_dispatcher_type: flex", "core 0.16.1 transformer_config.py:1065")
    backend: tuple[tuple[str, str], ...] = ()
    if dispatcher == "flex":
        backend = (("moe_flex_dispatcher_backend", job.auto(
            "framework_options.moe_flex_dispatcher_backend", str(options.get("moe_flex_dispatcher_backend", "auto")),
            "deepep", "core 0.16.1 transformer_config.py:682")),)
    return (("moe_token_dispatcher_type", dispatcher), *backend, ("main_grad_bytes", str(dtype_bytes(grads))),
            *_layer_options(job, options), *_core_options(job, options))


def _attention(job: Job, options: dict[str, object]) -> str:
    """flash, fused or unfused. Left to TransformerEngine: flash before Hopper, fused from Hopper on.

    No backward of cuDNN is deterministic on Blackwell for TransformerEngine up to 2.11 (utils.py:1068, "Disabling
    FusedAttention for determinism reasons on Blackwell"), and then flash is left.
    """
    given = str(options.get("attention_backend", "auto"))
    if options.get("transformer_impl") == "local" or given == "local":
        return "unfused"
    if not any(isinstance(b.block, Attention | LatentAttention) for kind in job.graph.kinds for b in kind.branches):
        return "fused"
    newest = (9, 9) if options.get("deterministic_mode") else (99, 9)
    best = "fused" if (9, 0) <= job.compute_capability <= newest else "flash"
    return job.auto("framework_options.attention_backend", given, best, "TransformerEngine 2.18 dot_product_attention/"
                    "utils.py get_attention_backend, with flash-attn installed and heads that both serve")


def _refuse_packed(job: Job, options: dict[str, object]) -> None:
    """Core's own attention knows no packs; TransformerEngine's, not fused, does."""
    if "local" in (options.get("transformer_impl"), options.get("attention_backend")):
        raise job.illegal("training.lengths", "Packed sequence is not supported by DotProductAttention",
                          "core 0.16.1 transformer/dot_product_attention.py:153")
    raise job.not_yet("training.lengths", "packed sequences with attention that is not fused")


def _core_options(job: Job, options: dict[str, object]) -> tuple[tuple[str, str], ...]:
    """What every layer is told: how attention runs, who adds up weight gradients, what a batch brings along."""
    backend = _attention(job, options)
    if backend == "unfused" and job.mesh.cp > 1:
        raise job.illegal("mesh.cp", "attention that is not fused and context parallelism", "core 0.16.1 transformer/"
                          "dot_product_attention.py:53; TransformerEngine 2.18 dot_product_attention/utils.py: "
                          "UnfusedDotProductAttention does not support context parallelism")
    if backend == "unfused" and job.scenario.training.lengths == "packed":
        _refuse_packed(job, options)
    exchange = str(options.get("cp_comm_type", "p2p"))
    if exchange == "all_gather" and job.mesh.cp > 1:
        raise job.not_yet("framework_options.cp_comm_type", "keys and values that are gathered over cp (all_gather)")
    made = [("attention_backend", backend), ("cp_comm_type", exchange)]
    unfused = ("gradient_accumulation_fusion", "moe_permute_fusion", "use_fused_weighted_squared_relu")
    made += [(name, "false") for name in unfused if options.get(name) is False]
    if options.get("transformer_impl") == "local":
        made.append(("core_attention", "true"))
    if backend == "unfused" and options.get("masked_softmax_fusion") is False:
        made.append(("masked_softmax_fusion", "false"))
    switches = ("create_attention_mask", "deterministic_mode", "tp_comm_overlap")
    made += [(name, "true") for name in switches if options.get(name)]
    if _version(job).startswith("main"):
        made.append(("shares_recomputed", "true"))  # core 0.17 tensor_parallel/random.py, share_storage
    if _fuses_experts(job, options):
        made.append(("use_transformer_engine_op_fuser", "true"))
    if options.get("delay_wgrad_compute") and not overlaps(job, options):
        raise job.illegal("framework_options.delay_wgrad_compute", f"{OVERLAP} must be enabled when enabling "
                          "delay_wgrad_compute", "core 0.16.1 transformer/transformer_config.py:1912")
    return (*made, (OVERLAP, "true")) if overlaps(job, options) else tuple(made)


def _layer_options(job: Job, options: dict[str, object]) -> tuple[tuple[str, str], ...]:
    """What Bridge's providers of single families set, or leave as core has it."""
    family = job.graph.architecture.family
    made: list[tuple[str, str]] = []
    if family.startswith("qwen") or "bias_activation_fusion" in options:
        fused = job.flag(options, "bias_activation_fusion", "core 0.16.1 transformer_config.py:354; Bridge 0.3.1 "
                         "models/qwen/ sets none", default=not family.startswith("qwen"))
        made.append(("bias_activation_fusion", str(fused).lower()))
    made += _rotation(job, options)
    if family in SOFTMAX_ROUTED:
        given = options.get("moe_router_dtype")
        made.append(("moe_router_dtype", job.auto("framework_options.moe_router_dtype", str(given or "auto"),
                                                  job.compute, "core 0.16.1 transformer_config.py:629: the input's")))
    elif options.get("moe_router_dtype", "fp32") != "fp32":
        raise job.not_yet("framework_options.moe_router_dtype", f"a router of {family} in {job.compute}")
    return tuple(made)


def _rotation(job: Job, options: dict[str, object]) -> list[tuple[str, str]]:
    """Whether rotary embeddings are one kernel: providers of dense attention say so, those of latent attention not."""
    latent = any(isinstance(b.block, LatentAttention) for kind in job.graph.kinds for b in kind.branches)
    if not latent and "apply_rope_fusion" not in options:
        return []
    fused = job.flag(options, "apply_rope_fusion", "Bridge 0.3.1 models/deepseek/deepseek_v3_bridge.py", default=False)
    return [("apply_rope_fusion", str(fused).lower())]


def _buckets(job: Job, options: dict[str, object], made: Formats, fp8: Fp8 | None) -> MegatronDdpStrategy:
    """Mxfp8 parameters are gathered in 16 bits, through the gradient buffer (reuse_grad_buf_for_mxfp8_param_ag)."""
    mesh, scatter = job.mesh, made.scatter
    if mesh.dp_replicate > 1 and not scatter:
        raise job.illegal("mesh.dp_replicate", f"{mesh.dp_replicate} optimizer instances: Partial DistOpt cannot be "
                          "used without DistOpt", "core 0.16.1 distributed/distributed_data_parallel.py:229")
    dense, expert = shard_axes(job)
    overlap, gathers_ahead = _overlap(job, options, scatter=scatter)
    if not overlap:
        job.refuse_idle(options, "bucket_size", "without overlap_grad_reduce")
    bucket = _bucket_size(job, options) if overlap else 0
    replicate = ("dp_replicate", "expert_dp_replicate") if mesh.dp_replicate > 1 else ("", "")
    return MegatronDdpStrategy(bucket, (dense, expert), replicate, made.grads, scatter, scatter, 64 if scatter else 1,
                   128 if scatter else 1, overlap, gathers_ahead,
                   job.compute if fp8 and fp8.params and fp8.scaling.recipe == "mxfp8" else "")


def _bucket_size(job: Job, options: dict[str, object]) -> int:
    """Parameters of a bucket; Bridge 0.3.1 training/comm_overlap.py:540: 128 Mi with a `CommOverlapConfig`."""
    given = options.get("bucket_size")
    default = max(40_000_000, 1_000_000 * job.mesh.axis("dp").size)
    return int(job.auto("framework_options.bucket_size", "auto" if given is None else str(given), str(default),
                        "core 0.16.1 distributed/distributed_data_parallel.py:65: max(40e6, 1e6 x dp)"))


def _overlap(job: Job, options: dict[str, object], *, scatter: bool) -> tuple[bool, bool]:
    """Whether gradients are reduced beside backward, and parameters gathered beside the next forward."""
    source = "Bridge 0.3.1 recipes/nemotronh/nemotron_3_nano.py:140"
    grads = job.flag(options, "overlap_grad_reduce", source, default=True)
    if not scatter:  # nothing is gathered
        if options.get("overlap_param_gather"):
            raise job.illegal("framework_options.overlap_param_gather", "--overlap-param-gather only supported with "
                              "distributed optimizer", "Megatron-LM training/arguments.py")
        return grads, False
    gather = job.flag(options, "overlap_param_gather", f"{source}; never without overlap_grad_reduce", default=grads)
    if gather and not grads:
        raise job.illegal("framework_options.overlap_param_gather",
                          "Must use --overlap-param-gather with --overlap-grad-reduce",
                          "Megatron-LM training/arguments.py")
    return grads, gather


def _communicators(job: Job) -> tuple[str, ...]:
    mesh = job.mesh
    names = ["tp", "cp", "dp_cp", "pp"]
    if job.has_experts:
        names += ["ep", "etp", "expert_dp"]
    if mesh.dp_replicate > 1:  # several optimizer instances
        dense, expert = shard_axes(job)
        names += [dense, "dp_replicate"] + [expert, "expert_dp_replicate"] * job.has_experts
    return tuple(name for name in names if mesh.axis(name).size > 1)
