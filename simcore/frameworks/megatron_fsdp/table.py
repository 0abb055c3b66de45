"""Megatron-FSDP: Megatron's layers and meshes, with parameters, gradients and states sharded over data-parallel ranks.

Rules: core 0.16.1, and main of 2026-08-22 (d98e8a64): `distributed/fsdp/mcore_fsdp_adapter.py` and
`distributed/fsdp/src/megatron_fsdp/`. Everything but the hand-over is `megatron`'s: layers, checks, checkpoints,
losses. A unit is a `TransformerLayer`; Mamba layers are no units in 0.16.1, so they stay gathered with the embedding,
the last norm and the head. Parameters rest as bf16 shards of buckets, with fp32 shards of masters
(`preserve_fp32_weights`), moments and main gradients. Of a base under adapters (main) the shards of parameters alone.

[Note: fp8 weights in buckets]
With fp8_param_gather weights are in separate buckets, a byte an element (param_and_grad_buffer.py,
_get_parameter_groups: dtype float8). Mxfp8 has a second such buffer with columns (`transpose_weight_buffer`): forward
gathers rows, backward columns in their place (`get_bucket_key`); the others have only rows, which Blackwell's products
take in either layout. Scales are not in a bucket: every rank has those of unsharded weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from simcore.errors import InputError, Problem
from simcore.frameworks.common.afterwards import bridge_afterwards
from simcore.frameworks.common.checkpoint_files import megatron_fsdp_files
from simcore.frameworks.megatron.checks import check_head
from simcore.frameworks.megatron.fp8 import Fp8, check_shapes, fp8_of, quantized
from simcore.frameworks.megatron.options import OPTIONS as MEGATRON_OPTIONS
from simcore.frameworks.megatron.options import bucket_elements
from simcore.frameworks.megatron.precision import Formats, formats
from simcore.frameworks.megatron.recompute import replays, together
from simcore.frameworks.megatron.rules import rank_numel, rules_of, shard_axes, whole_layout
from simcore.frameworks.megatron.stages import OVERLAP
from simcore.frameworks.megatron.table import table_of
from simcore.frameworks.megatron_fsdp.checks import check_adapters, check_stages, check_units
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.models.blocks import Mamba2
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.placement.framework import Framework, Rule, TensorPolicy, Unit
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Flat, Partial, Placements, TensorLayout
from simcore.units import dtype_bytes

__all__ = ["OPTIONS", "VERSIONS", "in_fp8", "table"]

VERSIONS = ("core 0.16.1", "main 2026-08-22")
SOURCE = "core 0.16.1 distributed/fsdp/src/megatron_fsdp"
EXPERTS = "expert_dp"
"""Routed experts have a separate group with and without expert parallelism (".experts." in the name,
param_and_grad_buffer.py `_get_parameter_groups`)."""
LEAST_AHEAD = 1_000_000_000
"""Least elements ahead: upstream's cap is a `max` (megatron_fsdp.py, suggested_communication_unit_size)."""
_OWN = {
    "data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "outer_dp_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "suggested_communication_unit_size": (None, int),
    "fsdp_double_buffer": (True, False),
    "fsdp_all_gather_in_start_param_sync": (True, False),
    "keep_fp8_transpose_cache": (True, False),
    "preserve_fp32_weights": (True, False),
    "init_model_with_meta_device": (True, False),
    "calculate_per_token_loss": (True, False),
    "log_params_norm": (True, False),
}
OPTIONS = MEGATRON_OPTIONS | _OWN


def in_fp8(job: Draft) -> ModelGraph:
    """Returns the job's model with linears that compute in fp8; unchanged if the job has none.

    NotYet for recipes of fp8 that are not served.
    """
    fp8 = _fp8(job, _shared(job.options(OPTIONS)))
    if fp8 is None:
        return job.graph
    check_head(job, job.options(OPTIONS))
    graph = quantized(job.graph, job.mesh, fp8, cut=True)
    check_shapes(job, fp8, graph)
    return graph


def _fp8(job: Draft, shared: dict[str, object]) -> Fp8 | None:
    """Format of fp8; only as parameters, and if backward makes no copy of the full weight."""
    if job.narrow == "fp4":
        raise job.not_yet("training.precision.compute", "compute in fp4 under megatron_fsdp")
    fp8 = fp8_of(job, shared)
    if fp8 and not fp8.params:
        raise job.not_yet("framework_options.fp8_param_gather", "weights in bf16 that compute in fp8, under "
                          "megatron_fsdp")
    if fp8 and (fp8.scaling.recipe in ("delayed", "blockwise") or fp8.scaling.transposes):
        raise job.not_yet("framework_options.fp8_recipe", f"fp8_recipe {fp8.scaling.recipe} under megatron_fsdp "
                          "(served: mxfp8, and tensorwise on Blackwell)")
    return fp8


def _shared(options: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in options.items() if key not in _OWN} | _OVERLAPPED


def table(job: Draft) -> Framework:
    """Returns Megatron-FSDP's table for a job: layouts of all tensors, units, settings.

    Raises IllegalLayout, InputError or NotYet for a job that is not served.
    """
    options = job.options(OPTIONS)
    _check(job, options)
    for name in sorted(_IDLE.keys() & options.keys()):
        job.note(f"framework_options.{name}", "changes no number", _IDLE[name])
    shared = _shared(options)
    base, fp8 = table_of(job, shared, sends_apart=_is_main(job)), _fp8(job, shared)
    check_units(job, base.stages, _unit_layers(job))
    dtypes = replace(formats(job, shared, sends_apart=_is_main(job)), master="fp32")
    copies = dtypes.grads != "fp32" and not options.get("use_precision_aware_optimizer")
    return replace(
        base, name="megatron_fsdp", version=VERSIONS[_is_main(job)],
        rules=_rules(job.graph, _choice(job, dtypes, shards_outer=_shards_outer(options))),
        optimizer=replace(base.optimizer, grad_copy=copies, late_master=False),
        units=_units(job),
        strategy=_queues(job, options, dtypes, has_columns=fp8 is not None and fp8.scaling.has_columns),
        assumptions=(*base.assumptions, *_BETWEEN * _shards_outer(options)),
        files=megatron_fsdp_files(job),
        afterwards=bridge_afterwards(job),
        options=replace(MegatronOptions.of(base.options), gradient_buckets=True,
                        main_grad_bytes=dtype_bytes(dtypes.sent),
                        embeddings_require_grad=_asks_for_gradient(job)),
        communicators=tuple(dict.fromkeys((*base.communicators, *_communicators(job)))),
    )


def _asks_for_gradient(job: Job) -> bool:
    """True where Bridge makes the first layer's input require a gradient, for a frozen base under full recomputation.

    Bridge main `peft/recompute.py`, maybe_enable_recompute_inputs_grad.
    """
    return job.scenario.training.method != "full" and replays(job)


_OVERLAPPED: dict[str, object] = {"overlap_grad_reduce": True, "overlap_param_gather": True}
"""Always with `optim_grads_params`: core 0.16.1 megatron_fsdp.py __init__ sets both."""


_BETWEEN = (
    ("outer_dp_sharding_strategy", "a bucket's gathers between and within copies run in turn, on one stream", "assumed",
     "Megatron-LM main core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py: on two streams, of which the "
     "second waits for the first"),)
_IDLE: dict[str, str] = {
    "overlap_param_gather": "core 0.16.1 megatron_fsdp.py __init__ sets it to true with optim_grads_params",
    "disable_parameter_transpose_cache": "core 0.16.1 extensions/transformer_engine.py: without it TE keeps transposes "
                                         "of weights over microbatches; parameters in fp8 have none to keep",
    "init_model_with_meta_device": "core 0.16.1 fsdp/src/README.md: it decides what is on the device before the first "
                                   "step, which is not simulated",
    "calculate_per_token_loss": "core 0.16.1 finalize_model_grads.py: gradients are divided at another moment"}
"""Options that are accepted, with the reason why they change no number."""


def _check(job: Draft, options: dict[str, object]) -> None:
    """Refuses options of Megatron-FSDP that this version of rankscope does not model."""
    job.refuse_offload("activations")
    strategy = str(options.get("data_parallel_sharding_strategy", "auto"))
    strategy = job.auto("framework_options.data_parallel_sharding_strategy", strategy, "optim_grads_params",
                        f"{SOURCE}/megatron_fsdp.py: the default without a ddp_config")
    if strategy != "optim_grads_params":
        raise job.not_yet("framework_options.data_parallel_sharding_strategy",
                          f"data_parallel_sharding_strategy: {strategy} under megatron_fsdp")
    for name, served in (("keep_fp8_transpose_cache", False), ("preserve_fp32_weights", True),
                         ("use_distributed_optimizer", True)):
        if options.get(name, served) != served:
            raise job.not_yet(f"framework_options.{name}", f"{name}: {options[name]} under megatron_fsdp")
    if options.get("fsdp_all_gather_in_start_param_sync") is False and not _is_main(job):
        raise job.illegal("framework_options.fsdp_all_gather_in_start_param_sync", "core 0.16.1 has no such option: it "
                          "gathers there in any case", f"{SOURCE}/megatron_fsdp.py start_param_sync")
    if options.get("fsdp_double_buffer") is False and options.get("nccl_ub"):
        raise InputError(Problem(job.scenario.where("framework_options", "fsdp_double_buffer"), "fsdp_double_buffer: "
                                 "false changes nothing with nccl_ub, which switches it on"))
    _check_outer(job, options)
    _check_precise(job, options)
    if job.mesh.dp_replicate > 1 and job.has_experts and not _is_main(job):
        raise job.illegal("mesh.dp_replicate", "Megatron Expert Parallelism is enabled, but no expt_dp_group is "
                          "provided", "core 0.16.1 distributed/fsdp/mcore_fsdp_adapter.py _init_dist_index: no mesh of "
                          "experts for several optimizer instances")
    if job.mesh.pp > 1:
        check_stages(job, options)
    if job.scenario.training.method != "full":
        check_adapters(job, is_main=_is_main(job))
    if together(job) > 1:
        raise job.not_yet("training.recompute", "several layers that are replayed together, under megatron_fsdp")


def _check_outer(job: Draft, options: dict[str, object]) -> None:
    key, outer = "outer_dp_sharding_strategy", options.get("outer_dp_sharding_strategy", "no_shard")
    if outer == "no_shard":
        return
    if outer != "optim":
        raise job.illegal(f"framework_options.{key}", f"{outer}: it is no_shard or optim",
                          "Megatron-LM training/arguments.py --outer-dp-sharding-strategy")
    if job.mesh.dp_replicate == 1:
        raise job.illegal(f"framework_options.{key}", "with a single optimizer instance there is no buffer between "
                          "copies, and the first all-gather of parameters fails", "Megatron-LM main core/distributed/"
                          "fsdp/src/megatron_fsdp/param_and_grad_buffer.py get_fsdp_buffer")


def _check_precise(job: Draft, options: dict[str, object]) -> None:
    """Refuses what is not modelled of the precision-aware optimizer.

    Main keeps masters in Megatron-FSDP's buffer in any case (core/optimizer/__init__.py: master_weights is False), and
    the optimizer reads gradients in their own format (megatron_fsdp_use_decoupled_grad).
    """
    key, optimizer = "use_precision_aware_optimizer", job.scenario.training.optimizer
    if not options.get(key):
        return
    if not _is_main(job):
        raise job.not_yet(f"framework_options.{key}", f"{key}: True under megatron_fsdp, {VERSIONS[0]}")
    for name, given in (("master", optimizer.master), ("moments", optimizer.moments)):
        if given == "fp16":
            raise job.not_yet(f"training.optimizer.{name}", f"{name} in fp16 under megatron_fsdp")


def _queues(job: Draft, options: dict[str, object], made: Formats, *, has_columns: bool) -> MegatronFsdpStrategy:
    """Strategy: twice a unit's elements, but no less than a billion, wait; half of it is gathered ahead."""
    requested = options.get("suggested_communication_unit_size")
    waiting = int(str(requested)) if requested is not None else max(LEAST_AHEAD, 2 * _mean_unit(job))
    if requested is None:
        job.auto("framework_options.suggested_communication_unit_size", "auto", str(waiting),
                 f"{SOURCE}/megatron_fsdp.py: max(1e9, twice a unit's elements)")
    registers = options.get("nccl_ub") is True
    double = job.flag(options, "fsdp_double_buffer", "core 0.16.1 distributed/distributed_data_parallel_config.py:117",
                      default=registers)
    if double and made.sent != made.grads and job.mesh.dp_replicate > 1:
        raise job.not_yet("training.precision.grad_reduce", "gradients that copies send in another format from buffers "
                          "that units share")
    if double and options.get(OVERLAP) and _is_main(job):
        raise job.illegal("framework_options.fsdp_double_buffer", "1F1B overlap with FSDP does not support double "
                          "buffer.", "Megatron-LM main core/distributed/fsdp/mcore_fsdp_adapter.py:178")
    return MegatronFsdpStrategy(waiting // 2, waiting, _bucket_size(job, options), _axes(job), made.grads, made.sent,
                  frees_at_end=_frees_at_end(job, options),
                  keeps_outside=_is_main(job), reduces_in_place=double or _is_main(job), double_buffer=double,
                  replicate_axis="dp_replicate" if job.mesh.dp_replicate > 1 else "", has_columns=has_columns,
                  gathers_first=options.get("fsdp_all_gather_in_start_param_sync") is not False, nccl_ub=registers,
                  shards_outer=_shards_outer(options))


def _shards_outer(options: dict[str, object]) -> bool:
    return options.get("outer_dp_sharding_strategy") == "optim"


def _communicators(job: Job) -> list[str]:
    return [axis for axis in (*_axes(job), "dp_replicate") if job.mesh.axis(axis).size > 1]


def _axes(job: Job) -> tuple[str, str]:
    """(dense, expert) axes.

    Several optimizer instances (`num_distributed_optimizer_instances`) shard over fewer ranks.
    """
    if job.mesh.dp_replicate > 1 and job.has_experts:
        return shard_axes(job)
    return "dp_cp" if job.mesh.dp_replicate == 1 else "dp_shard_cp", EXPERTS


def _is_main(job: Job) -> bool:
    """True for main (d98e8a64): other `_root_pre_backward` and `reset(preserve_non_fsdp_units)` in megatron_fsdp.py."""
    return job.scenario.framework_version == VERSIONS[1]


def _frees_at_end(job: Draft, options: dict[str, object]) -> bool:
    """True if the norm of parameters is taken of shards, which frees gathered buckets (`stop_communication`)."""
    return job.flag(options, "log_params_norm", "Megatron-LM training/arguments.py; training/utils.py "
                    "calc_params_l2_norm", default=False)


def _bucket_size(job: Draft, options: dict[str, object]) -> int:
    """Elements of a bucket of no unit. Megatron-LM training/training.py get_model: 0 without overlap_grad_reduce."""
    if options.get("overlap_grad_reduce") is False:
        return 0
    return bucket_elements(job, options, range(len(job.graph.layers)), data_parallel=job.mesh.axis("dp_cp").size,
                           source="Megatron-LM training/training.py get_model: max(40e6, 1e6 x dp)")


def _unit_layers(job: Job) -> list[int]:
    """Layers that are units (mcore_fsdp_adapter.py, fsdp_unit_modules): TransformerLayer, on main MambaLayer too."""
    kinds = job.graph.kinds
    return [layer.index for layer in job.graph.layers if kinds[layer.kind].block is None
            and (_is_main(job) or not any(isinstance(branch.block, Mamba2) for branch in kinds[layer.kind].branches))]


def _units(job: Job) -> tuple[Unit, ...]:
    graph = job.graph
    return tuple(Unit(graph.layers[layer].path, ((layer, tuple(range(len(graph.tensors[graph.layers[layer].kind])))),),
                      layer, layer, _axes(job)[0]) for layer in _unit_layers(job))


def _mean_unit(job: Job) -> int:
    """Elements of the mean unit on one rank, before data-parallel sharding."""
    layers = _unit_layers(job)
    return rank_numel(job, layers) // max(1, len(layers))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Inputs of policies besides the tensor. `axes`: of parameters and gradients; `state_axes`: of states."""

    made: Formats
    compute: str
    axes: tuple[str, str]
    state_axes: tuple[str, str]
    states: tuple[str, ...]


def _choice(job: Job, made: Formats, *, shards_outer: bool) -> _Choice:
    axes = _axes(job)
    return _Choice(made, job.compute, axes, ("dp_cp", EXPERTS) if shards_outer else axes,
                   OPTIMIZERS[job.scenario.training.optimizer.name].states)


@lru_cache(maxsize=256)
def _rules(graph: ModelGraph, choice: _Choice) -> tuple[Rule, ...]:
    return rules_of(graph, lambda spec: _policy(spec, choice))


def _policy(spec: TensorSpec, choice: _Choice) -> TensorPolicy:
    unsharded, dtypes = whole_layout(spec), choice.made
    if spec.is_buffer:
        layout = TensorLayout(unsharded, spec.stored or dtypes.params)
        return TensorPolicy("buffer", layout, layout, layout, layout, at_rest_category="buffer")
    expert = spec.component in ("routed_experts", "expert_adapters") or spec.copies > 1
    axis = choice.axes[expert]
    cut: Placements = (*unsharded, (axis, Flat("bucket")))
    stored, used = spec.stored or dtypes.params, spec.stored or choice.compute
    return TensorPolicy(
        "expert" if expert else "dense", TensorLayout(cut, stored), TensorLayout(unsharded, used),
        TensorLayout((*unsharded, (axis, Partial())), dtypes.sent), TensorLayout(cut, dtypes.grads),
        _states((*unsharded, (choice.state_axes[expert], Flat("bucket"))), choice), grads_persist=True,
        unreduced_grad_category="")


def _states(placements: Placements, choice: _Choice) -> tuple[tuple[str, TensorLayout], ...]:
    return (("master_param", TensorLayout(placements, choice.made.master)),
            *((name, TensorLayout(placements, choice.made.moments)) for name in choice.states))
