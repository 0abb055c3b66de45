"""Megatron-Core with Megatron-Bridge: tensor, pipeline, context and expert parallelism with the distributed optimizer.

Versions: core 0.16.1 with Bridge 0.3.1, and the main branches of 2026-08-22 ("main 2026-08-22"). Parameters and main
gradients are whole on every data-parallel rank, in flat buffers; masters and moments are cut over the dense
data-parallel ranks (context parallel ranks included) and, for experts, over the expert-data-parallel ones.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from simcore.frameworks.common.afterwards import bridge_afterwards
from simcore.frameworks.common.checkpoint_files import megatron_files
from simcore.frameworks.common.hot_ranks import fullest_load, hot_ranks_assumption
from simcore.frameworks.common.te_offload import activation_offload
from simcore.frameworks.common.te_offload import assumptions as offload_assumptions
from simcore.frameworks.megatron.checks import (
    CHUNKED,
    check,
    check_attention,
    check_chunked_loss,
    check_fused_loss,
    check_head,
    check_overlap,
    check_registered,
)
from simcore.frameworks.megatron.experts.kernels import check_fuser, check_shared_overlap
from simcore.frameworks.megatron.families.exaone import check_exaone
from simcore.frameworks.megatron.families.glm5 import check_chosen
from simcore.frameworks.megatron.fp8 import Fp8, check_shapes, fp8_of, narrow_layers, quantized, with_format
from simcore.frameworks.megatron.fp8_notes import assumptions as fp8_assumptions
from simcore.frameworks.megatron.layerwise_optimizer import assumptions as muon_assumptions
from simcore.frameworks.megatron.layerwise_optimizer import dealt
from simcore.frameworks.megatron.libraries import check_user_buffers, host_notes, layer_assumptions, libraries_of
from simcore.frameworks.megatron.options import OPTIONS, TE_LOSS, bucket_elements, implementation_options, version_of
from simcore.frameworks.megatron.precision import Formats, formats
from simcore.frameworks.megatron.recompute import assumptions as recompute_assumptions
from simcore.frameworks.megatron.recompute import check_groups, checkpoint, kept_whole, together
from simcore.frameworks.megatron.rules import rules, shard_axes
from simcore.frameworks.megatron.stages import frees_outputs, schedule, stages
from simcore.frameworks.megatron.strategy import MegatronDdpStrategy
from simcore.frameworks.megatron.vision.rules import assumptions_of_tower, check_tower
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.inputs.scenario import Mesh as Degrees
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph
from simcore.models.network import Edge
from simcore.operators.megatron.ops.fused_logprobs import FUSED
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.placement.framework import Framework, LayerOffload, ModuleOffload, Optimizer, Padding
from simcore.placement.job import Draft, Job

__all__ = ["QLORA_REFUSAL", "default_etp", "in_fp8", "table", "table_of"]

QLORA_REFUSAL = (
    "a base in 4 bits: bitsandbytes packs torch.nn.Linear, and Megatron's linears are TransformerEngine's or its own, "
    "cut over tp; nothing in core or bridge packs those",
    "bridge 0.3.1 peft/lora_layers.py:701 (quant_state of a nn.Linear alone), core 0.16.1 tensor_parallel/layers.py")
"""Why no qlora: the message, and the rule."""


def default_etp(degrees: Degrees) -> int:
    """Returns the size of expert tensor parallelism for a mesh that leaves it out: that of `tp`.

    Core 0.16.1 `parallel_state.py:787`.
    """
    return degrees.tp


def in_fp8(job: Draft) -> ModelGraph:
    """Returns the job's model with linears that compute in fp8 or fp4; unchanged if the job has none."""
    made = fp8_of(job, job.options(OPTIONS))
    if made is None:
        return job.graph
    check_head(job, job.options(OPTIONS))
    graph = quantized(job.graph, job.mesh, made)
    check_shapes(job, made, graph)
    return graph


def table(job: Draft) -> Framework:
    """Returns Megatron's table for a job: layouts of all tensors, settings.

    Raises IllegalLayout, InputError or NotYet for a job that is not served.
    """
    return table_of(job, job.options(OPTIONS))


def table_of(job: Draft, options: dict[str, object], *, sends_apart: bool = False) -> Framework:
    """Returns Megatron's table for a job with checked framework options; see `table`, and `precision.formats`."""
    sequence_parallel = _sequence_parallel(job)
    made_stages, made_schedule = stages(job, options), schedule(job, options)
    check_groups(job, made_stages)
    check_tower(job, options, made_stages)
    check(job, sequence_parallel=sequence_parallel)
    check_overlap(job, options, sequence_parallel=sequence_parallel)
    check_exaone(job, chunks=made_schedule.num_chunks)
    check_chosen(job, options, made_stages, sequence_parallel=sequence_parallel)
    check_attention(job, options)
    check_shared_overlap(job, options)
    training, made, fp8 = job.scenario.training, formats(job, options, sends_apart=sends_apart), fp8_of(job, options)
    check_user_buffers(job, options, fp8)
    check_fuser(job, options, narrow_layers(job.graph, fp8))
    policies, offload = rules(job, made), activation_offload(job, options)
    _note_defaults(job)
    return _with_kept_inputs(job.graph, Framework(
        name="megatron", version=version_of(job), rules=policies, units=(),
        strategy=_buckets(job, options, made, fp8, made_stages),
        optimizer=Optimizer(training.optimizer.name, "te", grad_copy=made.grads != "fp32" and not made.precise,
                            late_master=made.precise and not made.offloaded),
        compute_dtype=job.compute, checkpoint=checkpoint(job),
        kept_whole=kept_whole(job, made_stages),
        recomputed_together=together(job),
        loss=_loss(job, options),
        sequence_parallel=sequence_parallel,
        stages=made_stages,
        schedule=made_schedule,
        frees_sent_output=frees_outputs(job, options),
        keeps_received=True,
        deferred_heads=_deferred(job, options),
        dealt=dealt(job, policies, made_stages, shard_axes(job), by_parts=_by_parts(job, options)),
        offload=offload,
        options=with_format(settings := implementation_options(job, options, made.grads), fp8),
        communicators=_communicators(job, settings), libraries=libraries_of(job, options, fp8),
        files=megatron_files(job), afterwards=bridge_afterwards(job), fullest_load=fullest_load(job),
        padding=Padding(16, "Bridge 0.3.1 data/datasets/sft.py:206 pad_seq_length_to_mult, :703"),
        assumptions=_assumptions(job, options, made, fp8, offload),
    ))


def _with_kept_inputs(graph: ModelGraph, framework: Framework) -> Framework:
    """Adds layers with experts that run as nodes, under the all-to-all dispatcher and on one stage.

    [Note: inputs behind a dispatcher] in `program/layer_inputs.py`.
    """
    settings = MegatronOptions.of(framework.options)
    if not settings.overlap_moe_expert_parallel_comm or settings.dispatcher != "alltoall" or len(framework.stages) > 1:
        return framework
    routes = [any(isinstance(branch.block, Moe) for branch in kind.branches) for kind in graph.kinds]
    return replace(framework, kept_layer_inputs=tuple(layer.index for layer in graph.layers if routes[layer.kind]))


def _assumptions(job: Draft, options: dict[str, object], made: Formats, fp8: Fp8 | None,
                 offload: LayerOffload | ModuleOffload | None) -> tuple[tuple[str, str, str, str], ...]:
    return (*layer_assumptions(job, options), *assumptions_of_tower(job), *recompute_assumptions(job),
            *muon_assumptions(job, packed=_by_parts(job, options)), *fp8_assumptions(fp8), *host_notes(made),
            *offload_assumptions(offload), *hot_ranks_assumption(job))


def _by_parts(job: Draft, options: dict[str, object]) -> bool:
    """Main's default, as Megatron-LM has it; core 0.16.1 has no such thing, and Bridge's recipes none of it."""
    key, is_main = "use_layer_wise_param_layout", version_of(job).startswith("main")
    if not OPTIMIZERS[job.scenario.training.optimizer.name].layerwise:
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


def _loss(job: Draft, options: dict[str, object]) -> str:
    """The cross entropy of Bridge's recipes for the model's family; without fusion, core's own in single kernels."""
    given = job.scenario.training.loss
    if given == FUSED:
        check_fused_loss(job, options)
        return job.auto("training.loss", given, given, CHUNKED)
    if job.scenario.training.logprob_chunk_size is not None:
        check_chunked_loss(job, options)
        return job.auto("training.loss", "auto", "log-probabilities in chunks", CHUNKED)
    if given in ("top_k", "values"):
        return job.auto("training.loss", given, given, "NeMo RL 7ea279ab algorithms/loss/loss_functions.py")
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


def _sequence_parallel(job: Draft) -> bool:
    given = job.scenario.training.sequence_parallel
    return job.auto("training.sequence_parallel", str(given).lower(), str(job.mesh.tp > 1).lower(),
                    "Bridge 0.3.1 recipes/nemotronh/nemotron_3_nano.py:46; core needs tp > 1") == "true"


def _note_defaults(job: Draft) -> None:
    if job.scenario.mesh.etp is None and job.has_experts:
        job.auto("mesh.etp", "auto", str(job.mesh.etp), "core 0.16.1 parallel_state.py:787: as tp")
    job.auto("training.optimizer.implementation", job.scenario.training.optimizer.implementation, "te",
             "core 0.16.1 optimizer/__init__.py: TransformerEngine's FusedAdam and FusedSGD")


def _buckets(job: Draft, options: dict[str, object], made: Formats, fp8: Fp8 | None,
             made_stages: tuple[tuple[int, ...], ...]) -> MegatronDdpStrategy:
    """Mxfp8 parameters are gathered in 16 bits, through the gradient buffer (reuse_grad_buf_for_mxfp8_param_ag)."""
    check_registered(job, options)
    mesh, scatter = job.mesh, made.scatter
    if mesh.dp_replicate > 1 and not scatter:
        raise job.illegal("mesh.dp_replicate", f"{mesh.dp_replicate} optimizer instances: Partial DistOpt cannot be "
                          "used without DistOpt", "core 0.16.1 distributed/distributed_data_parallel.py:229")
    dense, expert = shard_axes(job)
    overlap, gathers_ahead = _overlap(job, options, scatter=scatter)
    if not overlap:
        for name in ("bucket_size", "num_buckets"):
            job.refuse_idle(options, name, "without overlap_grad_reduce")
    bucket = bucket_elements(
        job, options, chain.from_iterable(made_stages[::mesh.pp]), data_parallel=mesh.axis("dp").size,
        source="core 0.16.1 distributed/distributed_data_parallel.py:65: max(40e6, 1e6 x dp)") if overlap else 0
    replicate = ("dp_replicate", "expert_dp_replicate") if mesh.dp_replicate > 1 else ("", "")
    return MegatronDdpStrategy(bucket, (dense, expert), replicate, made.grads, scatter, scatter, 64 if scatter else 1,
                   128 if scatter else 1, overlap, gathers_ahead,
                   job.compute if fp8 and fp8.params and fp8.scaling.recipe == "mxfp8" else "",
                   nccl_ub=options.get("nccl_ub") is True)


def _overlap(job: Draft, options: dict[str, object], *, scatter: bool) -> tuple[bool, bool]:
    """Tells whether gradients are reduced during backward, and whether parameters are gathered during forward.

    Without the first there is one bucket, which the first layer gathers (core 0.16.1 and main
    distributed/param_and_grad_buffer.py, finish_param_sync). Megatron-LM's arguments alone exclude it.
    """
    source = "Bridge 0.3.1 recipes/nemotronh/nemotron_3_nano.py:140"
    grads = job.flag(options, "overlap_grad_reduce", source, default=True)
    if not scatter:  # nothing is gathered
        if options.get("overlap_param_gather"):
            raise job.illegal("framework_options.overlap_param_gather", "--overlap-param-gather only supported with "
                              "distributed optimizer", "Megatron-LM training/arguments.py")
        return grads, False
    gather = job.flag(options, "overlap_param_gather", f"{source}; never without overlap_grad_reduce", default=grads)
    return grads, gather


def _communicators(job: Job, settings: MegatronOptions) -> tuple[str, ...]:
    """Groups of more than one rank; with a2a+p2p also those of each level of cp (create_hierarchical_groups)."""
    mesh, (heads, ring) = job.mesh, settings.exchange(job.mesh.cp)
    names = ["tp", "cp", *(f"cp/{heads}", f"cp%{heads}") * (min(heads, ring) > 1), "dp_cp", "pp"]
    if job.has_experts:
        names += ["ep", "etp", "expert_dp"]
    if mesh.dp_replicate > 1:  # several optimizer instances
        dense, expert = shard_axes(job)
        names += [dense, "dp_replicate"] + [expert, "expert_dp_replicate"] * job.has_experts
    return tuple(name for name in names if mesh.axis(name).size > 1)
