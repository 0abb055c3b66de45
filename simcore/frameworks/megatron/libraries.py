"""Kernel libraries and assumptions of a Megatron job: further settings that times and workspaces depend on."""

from __future__ import annotations

from simcore.frameworks.megatron.cuda_graphs import assumptions as graph_assumptions
from simcore.frameworks.megatron.cuda_graphs import graphs_of, pool_bytes
from simcore.frameworks.megatron.experts.stash import stash_assumptions
from simcore.frameworks.megatron.families.exaone import has_core_attention
from simcore.frameworks.megatron.fp8 import Fp8
from simcore.frameworks.megatron.options import VERSIONS, fuses_experts, version_of
from simcore.frameworks.megatron.precision import Formats
from simcore.frameworks.megatron.stages import OVERLAP, paired, schedule
from simcore.models.blocks import LatentAttention
from simcore.models.network import Edge
from simcore.placement.job import Draft, Job
from simcore.placement.libraries import KernelLibraries

__all__ = ["check_user_buffers", "host_notes", "layer_assumptions", "libraries_of"]

DEEPSEEK = ("deepseek_v2", "deepseek_v3")
_DIRECT_QUERY = (
    "model.q_lora_rank", "null: queries without an inner rank, as the configuration says; AutoBridge alone drops the "
    "null and builds 512, unless provider.q_lora_rank = None is set as the Moonlight recipe does", "assumed",
    "Bridge 0.3.1 models/conversion/model_bridge.py:364, core 0.16.1 MLATransformerConfig.q_lora_rank, Bridge "
    "recipes/moonlight/moonlight_16b.py:59")


def layer_assumptions(job: Job, options: dict[str, object]) -> tuple[tuple[str, str, str, str], ...]:
    """Returns assumptions about a Megatron job's layers, pipeline, CUDA graphs and dispatcher.

    Each is (key, value, kind of assumption, source). `options`: the framework options that the scenario sets, by name.
    """
    tied = job.graph.leads(Edge.COPY, job.graph.head)
    copies = (("tied embedding", "the all-reduce of its gradients over the first and last stage is left out", "assumed",
               "core 0.16.1 distributed/finalize_model_grads.py; in place, it takes no memory"),) * tied
    latent = [b.block for k in job.graph.kinds for b in k.branches if isinstance(b.block, LatentAttention)]
    is_released = version_of(job) == VERSIONS[0]
    if is_released and job.graph.architecture.family in DEEPSEEK and any(not b.q_rank for b in latent):
        copies = (*copies, _DIRECT_QUERY)
    if options.get(OVERLAP):
        copies = (*copies, (OVERLAP, "a backward pass before the forward pass that runs with it", "assumed",
                            "core 0.16.1 models/common/model_chunk_schedule_plan.py takes their layers in turn: at "
                            "most one layer's attention more at a time; kernels of the other pass hide exchanges, a "
                            "part of each that stands for the passes that run in pairs"))
    if options.get("delay_wgrad_compute"):
        copies = (*copies, ("delay_wgrad_compute", "memory as without it", "assumed", "core 0.16.1 models/common/"
                            "model_chunk_schedule_plan.py: weight gradients of a node wait for no more than the next "
                            "nodes of its layer, and what they are made of with them"))
    if fuses_experts(job, options) and job.has_experts:
        copies = (*copies, ("use_transformer_engine_op_fuser", "activation and casts between the products of experts "
                            "take no time, and memory is as without it", "assumed", "TransformerEngine 2.16 to 2.18 "
                            "pytorch/ops: fused grouped MLP for mxfp8"))
    if options.get("moe_shared_expert_overlap"):
        copies = (*copies, ("moe_shared_expert_overlap", "what layers keep is as without it", "assumed",
                            "core 0.16.1 moe/shared_experts.py: the same kernels, on a stream of their own"))
    if options.get("nccl_ub"):
        copies = (*copies, ("nccl_ub", "collectives take as long as without it, and as many SMs", "assumed",
                            "core main distributed/distributed_data_parallel_config.py: 4 to 6 SMs of NVLink, 1 to 16 "
                            "with InfiniBand, as a reference; no time is published"))
    copies = (*copies, *graph_assumptions(job, options), *stash_assumptions(options))
    if options.get("moe_flex_dispatcher_backend") != "hybridep":
        return copies
    return (*copies, ("moe_flex_dispatcher_backend", "recorded like deepep", "assumed",
             "HybridEP's buffers come from cudaMalloc, outside torch (DeepEP branch hybrid-ep, allocator.cu)"),)


def host_notes(made: Formats) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumption about the time of an optimizer's step on the host; () without offload.

    It is (key, value, kind of assumption, source).
    """
    if not made.offloaded:
        return ()
    return (("time of offload", "gradients are copied, the CPU updates at 0.7 of its memory bandwidth, parameters are "
             "copied back, one after the other", "assumed", "core 0.16.1 optimizer/cpu_offloading/hybrid_optimizer.py "
             "without overlap_cpu_optimizer_d2h_h2d; torch 2.13 optim/adam.py; no time is published"),)


def libraries_of(job: Draft, options: dict[str, object], fp8: Fp8 | None) -> KernelLibraries:
    """Returns the libraries that compute the job's kernels: TransformerEngine's layers or core's own.

    `options`: the framework options that the scenario sets, by name; `fp8`: settings of fp8 or fp4, or None. Core's own
    layers use TransformerEngine only for experts. Core 0.16.1 trains in a container of early 2026.
    """
    local = options.get("transformer_impl") == "local"
    flex = options.get("moe_token_dispatcher_type") == "flex"
    return KernelLibraries(
        date="2026-08" if version_of(job).startswith("main") else "2026-01", te_linears=job.has_experts or not local,
        te_grouped=not local and (not job.has_experts or options.get("moe_grouped_gemm") is not False),
        te_overlap=options.get("tp_comm_overlap") is True, core_buffers=True,
        core_attention=has_core_attention(job, options),
        user_buffer_bytes=user_buffer_bytes(fp8) if options.get("tp_comm_overlap") else 0,
        dispatcher=str(options.get("moe_flex_dispatcher_backend", "deepep")) if flex else "nccl",
        attention="attention", module_calls=True, launches_each=not fuses_experts(job, options),
        graphs=graphs_of(job, options), graph_pool_bytes=pool_bytes(job, options),
        fills=options.get("deterministic_mode") is True,
        waits_for_messages=job.mesh.pp > 1 and schedule(job, options).num_chunks == 1,
        overlapped=("tp",) * (options.get("tp_comm_overlap") is True),  # core 0.16.1 model_parallel_config.py:265
        paired=paired(job, options), beside_exchanges=("shared_experts",) * (
            options.get("moe_shared_expert_overlap") is True) + ("stash",) * (options.get("moe_paged_stash") is True),
        beside_attention=job.mesh.cp > 1, counts_zeros=options.get("log_num_zeros_in_grad") is True)


def check_user_buffers(job: Job, options: dict[str, object], made: Fp8 | None) -> None:
    """Raises IllegalLayout if tp_comm_overlap is on with a block recipe (blockwise, nvfp4).

    TransformerEngine's user buffers cannot gather those formats.
    """
    if made and options.get("tp_comm_overlap") and made.scaling.recipe in ("blockwise", "nvfp4"):
        raise job.illegal("framework_options.tp_comm_overlap", f"Unsupported quantizer for Userbuffers: "
                          f"{job.narrow}_recipe {made.scaling.recipe}", "TransformerEngine 2.18 pytorch/module/base.py")


def user_buffer_bytes(made: Fp8 | None) -> int:
    """Returns the bytes of TE's user buffers for each element of a layer's input.

    Six for gathers, in fp8 where layers are; four bf16 for sums. Layers in bf16, if others are in fp8, have a second
    set (Bridge 0.3.1 `training/initialize.py`, quantization_modes).
    """
    plain = 2 * (6 + 4)
    return plain if made is None else 6 + 2 * 4 + plain * bool(made.start or made.end)
