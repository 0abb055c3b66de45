"""Options of Megatron-Core and Bridge, and the options that they give to each layer."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, Final, cast

from simcore.frameworks.common.te_offload import OPTIONS as OFFLOAD_OPTIONS
from simcore.frameworks.megatron.cuda_graphs import OPTIONS as GRAPH_OPTIONS
from simcore.frameworks.megatron.experts.stash import STASH_OPTIONS, stash_options
from simcore.frameworks.megatron.families.exaone import accumulates_in_product, has_core_attention
from simcore.frameworks.megatron.families.glm5 import BACKEND, DISPATCHER, chooses_keys
from simcore.frameworks.megatron.fp8 import OPTIONS as FP8_OPTIONS
from simcore.frameworks.megatron.pipeline_layout import OPTION as LAYOUT
from simcore.frameworks.megatron.rules import rank_numel
from simcore.frameworks.megatron.stages import KEEPS_OUTPUT, OVERLAP, overlaps
from simcore.models.blocks import Attention, LatentAttention, Mlp, Moe
from simcore.operators.megatron.ops.options import (
    AttentionBackend,
    ContextParallelComm,
    MegatronOptions,
)
from simcore.placement.job import Draft, Job
from simcore.units import dtype_bytes

__all__ = ["DISPATCHERS", "IMPLIED", "OPTIONS", "TE_LOSS", "VERSIONS", "bucket_elements", "fuses_experts",
           "implementation_options", "version_of"]

SIZES: Final = "hierarchical_context_parallel_sizes"
VERSIONS = ("core 0.16.1 + bridge 0.3.1", "main 2026-08-22")
OPTIONS = {
    "use_distributed_optimizer": (True, False),
    "use_precision_aware_optimizer": (True, False),
    "store_param_remainders": (True, False),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "bucket_size": (None, int),
    "num_buckets": (None, int),
    "nccl_ub": (True, False),
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
    "activation_func_fp8_input_store": (True, False),
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
    KEEPS_OUTPUT: (True, False),
    "deterministic_mode": (True, False),
    "log_num_zeros_in_grad": (True, False),
    "tp_comm_overlap": (True, False),
    "moe_shared_expert_overlap": (True, False),
    "use_layer_wise_param_layout": (True, False),
    "mtp_detach_heads": (True, False),
    "cp_comm_type": ("p2p", "a2a", "all_gather", "a2a+p2p"),
    SIZES: (None, list),
    BACKEND: ("none", "tilelang", "cudnn"),
    **STASH_OPTIONS,
    **GRAPH_OPTIONS,
    **FP8_OPTIONS,
    **OFFLOAD_OPTIONS,
}
IMPLIED = {"framework_options.use_fused_weighted_squared_relu": True}
"""Keys that are on where a scenario leaves them out, as this module reads them."""
DISPATCHERS = {
    "alltoall": {"moe_token_dispatcher_type": "alltoall"},
    "allgather": {"moe_token_dispatcher_type": "allgather"},
    "deepep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
    "hybridep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
}
"""Core 0.16.1 transformer_config.py:675 and :682: the type, and the library that flex calls."""
_CORE: Final = "Megatron-LM d98e8a64 training/arguments.py"
SOFTMAX_ROUTED = ("gpt2", "mixtral", "qwen3_moe")
TE_LOSS = ("deepseek_v2", "deepseek_v3", "qwen3_moe")
"""Families whose recipes say cross_entropy_fusion_impl: te (Bridge 0.3.1 recipes/{deepseek,moonlight,qwen})."""


def fuses_experts(job: Job, options: dict[str, object]) -> bool:
    """True if TransformerEngine fuses the products of experts with all that is between them: as asked, on main only."""
    return options.get("use_transformer_engine_op_fuser") is True and version_of(job).startswith("main")


def version_of(job: Job) -> str:
    """Returns the version of core and Bridge, as one text, that the scenario names; the released one for "auto"."""
    given = job.scenario.framework_version
    return VERSIONS[0] if given == "auto" else given


def bucket_elements(job: Draft, options: dict[str, object], layers: Iterable[int], *, data_parallel: int,
                    source: str) -> int:
    """Returns the elements at which a bucket is closed, as Megatron-LM's get_model works it out.

    `layers`: numbers of the layers on a rank of the first stage, whose parameters are shared out if `num_buckets` is
    given. Without either option a million elements for each of `data_parallel` ranks, at least 40 millions.
    """
    given, count = options.get("bucket_size"), options.get("num_buckets")
    if count is not None:
        if given is not None:
            raise job.illegal("framework_options.num_buckets", "Cannot specify both num_buckets and bucket_size",
                              "Megatron-LM main core/distributed/distributed_data_parallel_config.py:275")
        return max(1, rank_numel(job, layers) // int(str(count)))
    return int(job.auto("framework_options.bucket_size", "auto" if given is None else str(given),
                        str(max(40_000_000, 1_000_000 * data_parallel)), source))


def implementation_options(job: Draft, options: dict[str, object], grads: str) -> MegatronOptions:
    """Returns the settings of Megatron's layers for a job (`MegatronOptions`), with their defaults.

    `options`: the framework options that the scenario sets, by name; `grads`: dtype of main gradients. Raises
    IllegalLayout or NotYet for options that are refused.
    """
    dispatcher = str(options.get("moe_token_dispatcher_type", "auto"))
    usual = DISPATCHER if chooses_keys(job) else (
        "alltoall", "deepep", "Bridge 0.3.1 models/nemotronh/nemotron_h_provider.py:54")
    if job.has_experts:
        dispatcher = job.auto("framework_options.moe_token_dispatcher_type", dispatcher, usual[0], usual[2])
    if options.get("moe_flex_dispatcher_backend") is not None and dispatcher != "flex":
        raise job.illegal("framework_options.moe_flex_dispatcher_backend", "this backend is only supported with flex "
                          "token dispatcher: moe_token_dispatcher_type: flex", "core 0.16.1 transformer_config.py:1065")
    backend = "deepep"
    if dispatcher == "flex":
        backend = job.auto(
            "framework_options.moe_flex_dispatcher_backend", str(options.get("moe_flex_dispatcher_backend", "auto")),
            usual[1], DISPATCHER[2] if chooses_keys(job) else "core 0.16.1 transformer_config.py:682")
    made: dict[str, Any] = {
        "dispatcher": "alltoall" if dispatcher == "auto" else dispatcher,
        "moe_flex_dispatcher_backend": backend, "main_grad_bytes": dtype_bytes(grads), **stash_options(job, options),
        "logprob_chunk_size": job.scenario.training.logprob_chunk_size or 0,
        "reads_images": job.graph.architecture.has_tower}
    return _core_options(job, options, made | _layer_options(job, options))


def _attention(job: Draft, options: dict[str, object]) -> AttentionBackend:
    """flash, fused or unfused. Left to TransformerEngine: flash before Hopper, fused from Hopper on.

    No backward of cuDNN is deterministic on Blackwell for TransformerEngine up to 2.11 (utils.py:1068, "Disabling
    FusedAttention for determinism reasons on Blackwell"), and then flash is left.
    """
    given = str(options.get("attention_backend", "auto"))
    if job.graph.architecture.family == "exaone4":
        job.refuse_idle(options, "attention_backend", "in EXAONE 4, whose attention is core's own")
    if chooses_keys(job):
        return "fused"  # kernels of its own, which no option of TransformerEngine's names
    if has_core_attention(job, options) or given == "local":
        return "unfused"
    if not any(isinstance(b.block, Attention | LatentAttention) for kind in job.graph.kinds for b in kind.branches):
        return "fused"
    newest = (9, 9) if options.get("deterministic_mode") else (99, 9)
    best = "fused" if (9, 0) <= job.compute_capability <= newest else "flash"
    chosen = job.auto("framework_options.attention_backend", given, best, "TransformerEngine 2.18 "
                      "dot_product_attention/utils.py get_attention_backend, with flash-attn installed and heads that "
                      "both serve")
    return cast(AttentionBackend, chosen)


def _refuse_packed(job: Job, options: dict[str, object]) -> None:
    """Core's own attention knows no packs; TransformerEngine's, not fused, does."""
    if has_core_attention(job, options) or options.get("attention_backend") == "local":
        raise job.illegal("training.lengths", "Packed sequence is not supported by DotProductAttention",
                          "core 0.16.1 transformer/dot_product_attention.py:153")
    raise job.not_yet("training.lengths", "packed sequences with attention that is not fused")


def _core_options(job: Draft, options: dict[str, object], made: dict[str, Any]) -> MegatronOptions:
    """Adds the options of every layer: the kernel of attention, fusions, what a batch brings along."""
    backend = _attention(job, options)
    if backend == "unfused" and job.mesh.cp > 1:
        raise job.illegal("mesh.cp", "attention that is not fused and context parallelism", "core 0.16.1 transformer/"
                          "dot_product_attention.py:53; TransformerEngine 2.18 dot_product_attention/utils.py: "
                          "UnfusedDotProductAttention does not support context parallelism")
    if backend == "unfused" and job.scenario.training.lengths == "packed":
        _refuse_packed(job, options)
    exchange = str(options.get("cp_comm_type", "p2p")) if job.mesh.cp > 1 else "p2p"
    if chooses_keys(job) and job.mesh.cp > 1:
        exchange = job.auto("framework_options.cp_comm_type", str(options.get("cp_comm_type", "auto")), "all_gather",
                            "Bridge 067f987d models/glm_moe_dsa/glm5_bridge.py:128")
    elif exchange == "all_gather" and job.mesh.cp > 1:
        raise job.not_yet("framework_options.cp_comm_type", "keys and values that are gathered over cp (all_gather)")
    if options.get("delay_wgrad_compute") and not overlaps(job, options):
        raise job.illegal("framework_options.delay_wgrad_compute", f"{OVERLAP} must be enabled when enabling "
                          "delay_wgrad_compute", "core 0.16.1 transformer/transformer_config.py:1912")
    return MegatronOptions(
        **made, attention_backend=backend, cp_comm_type=cast(ContextParallelComm, exchange),
        hierarchical_context_parallel_sizes=_exchange_sizes(job, options, exchange),
        sends_output_again=not version_of(job).startswith("main"),  # TE 2.8 context_parallel.py:2020, 2.18: 2407
        gradient_accumulation_fusion=accumulates_in_product(job, options),
        moe_permute_fusion=not job.has_experts or options.get("moe_permute_fusion") is not False,
        use_fused_weighted_squared_relu=(not _squares(job)
                                         or options.get("use_fused_weighted_squared_relu") is not False),
        core_attention=has_core_attention(job, options),
        masked_softmax_fusion=backend != "unfused" or options.get("masked_softmax_fusion") is not False,
        create_attention_mask=bool(options.get("create_attention_mask")),
        deterministic_mode=bool(options.get("deterministic_mode")),
        tp_comm_overlap=bool(options.get("tp_comm_overlap")),
        compiles_delta_net=version_of(job).startswith("main"),  # ssm/gated_delta_net/common.py, jit_fuser
        shares_recomputed=version_of(job).startswith("main"),  # core 0.17 tensor_parallel/random.py, share_storage
        use_transformer_engine_op_fuser=fuses_experts(job, options),
        fuses_dense_mlp=bool(job.narrow) and not job.has_experts and options.get(
            "use_transformer_engine_op_fuser") is True,
        overlap_moe_expert_parallel_comm=overlaps(job, options))


def _squares(job: Job) -> bool:
    """True if routed experts have a squared ReLU between their products."""
    return any(isinstance(branch.block, Moe) and not branch.block.gated and not branch.block.gelu
               for kind in job.graph.kinds for branch in kind.branches)


def _exchange_sizes(job: Draft, options: dict[str, object], exchange: str) -> tuple[int, ...]:
    """Ranks that exchange heads, and ranks of a ring, with cp_comm_type a2a+p2p; () otherwise.

    Raises IllegalLayout for sizes that upstream stops at, NotYet for attention in 8 bits.
    """
    key, given = f"framework_options.{SIZES}", options.get(SIZES)
    if exchange != "a2a+p2p" or job.mesh.cp == 1:
        job.refuse_idle(options, SIZES, "without cp_comm_type: a2a+p2p and several context parallel ranks")
        return ()
    if not isinstance(given, list):
        raise job.illegal("framework_options.cp_comm_type", "--hierarchical-context-parallel-sizes must be set when "
                          f"a2a+p2p is used in cp comm: framework_options.{SIZES}", f"{_CORE}:585")
    sizes = tuple(one for one in given if isinstance(one, int) and not isinstance(one, bool) and one > 0)
    if len(sizes) != 2 or len(given) != 2:
        raise job.illegal(key, "CP implementation a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]: two sizes",
                          "TransformerEngine 2.18 dot_product_attention/context_parallel.py:4988")
    if prod(sizes) != job.mesh.cp:
        raise job.illegal(key, f"{sizes[0]} x {sizes[1]} is not cp, {job.mesh.cp}", f"{_CORE}:582")
    if options.get("fp8_dot_product_attention"):
        raise job.not_yet("framework_options.cp_comm_type", "attention in 8 bits under a2a+p2p")
    _check_heads(job, sizes[0])
    return sizes


def _check_heads(job: Draft, ranks: int) -> None:
    """Refuses heads of queries, keys or values that `ranks` cannot share out, each with all positions."""
    for block in (branch.block for kind in job.graph.kinds for branch in kind.branches):
        if not isinstance(block, Attention | LatentAttention):
            continue
        for heads in (block.num_heads, block.num_kv_heads if isinstance(block, Attention) else block.num_heads):
            if (own := max(heads // job.mesh.tp, 1)) % ranks:
                raise job.illegal(f"framework_options.{SIZES}", f"{own} heads a tp rank, which {ranks} ranks cannot "
                                  "share out: shape is invalid for input", "TransformerEngine 2.18 "
                                  "dot_product_attention/context_parallel.py:387, flash_attn_a2a_communicate")


def _layer_options(job: Draft, options: dict[str, object]) -> dict[str, Any]:
    """Options, by field, that Bridge's providers of single families set, or leave as core has them."""
    family, made = job.graph.architecture.family, dict[str, Any]()
    apart = family.startswith(("qwen", "gemma", "olmoe", "exaone"))
    if apart or "bias_activation_fusion" in options:
        fused = job.flag(options, "bias_activation_fusion", "core 0.16.1 transformer_config.py:354; Bridge 0.3.1 "
                         "models/qwen/, gemma/ and olmoe/ set none; Bridge 067f987d models/exaone/", default=not apart)
        if fused and family.startswith("gemma"):
            raise job.illegal("framework_options.bias_activation_fusion", "When bias_activation_fusion is True, "
                              "activation function should be either gelu, swiglu, or quick_geglu (fast_gelu here)",
                              "Megatron-LM d98e8a64 core/transformer/transformer_config.py:2421")
        made["bias_activation_fusion"] = fused
    if options.get("activation_func_fp8_input_store"):
        made["activation_func_fp8_input_store"] = _stores_in_8_bits(job, fused=made.get("bias_activation_fusion", True))
    made["apply_rope_fusion"] = _rotation(job, options)
    made |= _of_further_tokens(job, options)
    if family in SOFTMAX_ROUTED:
        given = options.get("moe_router_dtype")
        made["moe_router_dtype"] = job.auto(
            "framework_options.moe_router_dtype", str(given or "auto"), job.compute,
            "core 0.16.1 transformer_config.py:629: the input's")
    elif options.get("moe_router_dtype", "fp32") != "fp32":
        raise job.not_yet("framework_options.moe_router_dtype", f"a router of {family} in {job.compute}")
    return made


def _of_further_tokens(job: Draft, options: dict[str, object]) -> dict[str, Any]:
    """Fields of multi-token prediction; raises IllegalLayout or NotYet for modules that cannot be detached.

    Labels of further tokens come from the inputs where a policy has none (Megatron-LM main
    transformer/multi_token_prediction.py process_mtp_loss): their loss is the cross entropy of the configuration.
    """
    key, training, made = "framework_options.mtp_detach_heads", job.scenario.training, dict[str, Any]()
    if job.graph.branches and (training.logprob_chunk_size is not None or training.loss == "top_k"):
        made["mtp_loss"] = "te" if job.graph.architecture.family in TE_LOSS else "megatron"
    if not options.get("mtp_detach_heads"):
        return made
    if not version_of(job).startswith("main"):
        raise job.illegal(key, "core 0.16.1 has no such field", "core 0.16.1 transformer/transformer_config.py; use "
                          "framework_version: main 2026-08-22")
    if not job.graph.branches:
        raise job.illegal(key, "it is of multi-token prediction, and the model has no such modules (mtp_num_layers)",
                          "Megatron-LM main transformer/transformer_config.py:85")
    if job.mesh.pp > 1 or job.graph.has_tied_head:
        raise job.not_yet(key, "detached modules beside several stages or a tied table")
    return made | {"mtp_detach_heads": True}


def _stores_in_8_bits(job: Draft, *, fused: bool) -> bool:
    """True; raises IllegalLayout or NotYet where SwiGLU cannot keep its input in 8 bits, or it is not modelled."""
    key = "framework_options.activation_func_fp8_input_store"
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    if any(isinstance(block, Mlp) and not block.gated for block in blocks):
        raise job.illegal(key, "Storing activation input in FP8 is supported only for SwiGLU.",
                          "core 0.16.1 transformer/transformer_config.py:1526")
    if job.has_experts or not fused:
        raise job.not_yet(key, "experts that keep the input of SwiGLU in 8 bits, or a SwiGLU that is not fused")
    return True


def _rotation(job: Draft, options: dict[str, object]) -> bool | None:
    """Tells whether rotary embeddings are one kernel; None: the default of the dense attention's provider, one kernel.

    Providers of latent attention default to separate kernels, and so do those of EXAONE.
    """
    latent = any(isinstance(b.block, LatentAttention) for kind in job.graph.kinds for b in kind.branches)
    apart = job.graph.architecture.family.startswith("exaone")
    if not latent and not apart and "apply_rope_fusion" not in options:
        return None
    return job.flag(options, "apply_rope_fusion", "Megatron-LM d98e8a64 core/transformer/transformer_config.py:513; "
                    "Bridge 067f987d models/exaone/" if apart else
                    "Bridge 0.3.1 models/deepseek/deepseek_v3_bridge.py", default=False)
