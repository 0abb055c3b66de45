"""Table of the three stages of DeepSpeed's ZeRO: options and their defaults, refusals, tensor policies.

DeepSpeed 0.19.6 (edaa72212): `runtime/zero/config.py`; "auto": transformers 5.23 `integrations/deepspeed.py`,
trainer_config_finalize. bf16 without `data_types.grad_accum_dtype`: gradients are accumulated as they are computed, and
ZeRO-1 is ZeRO's own optimizer and not `BF16_Optimizer` (`runtime/engine.py`, _do_optimizer_sanity_check).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.afterwards import trainer_afterwards
from simcore.frameworks.common.checkpoint_files import plain_files
from simcore.frameworks.common.expert_adapters import TARGETS, adapts_experts
from simcore.frameworks.common.kernels import torch_libraries
from simcore.frameworks.common.liger import loss_with
from simcore.frameworks.common.low_rank.refusals import OF_ZERO
from simcore.frameworks.common.qlora import STORAGE_OPTION, STORAGES, packed_of
from simcore.frameworks.common.torch import all_or_no_checkpoint, check_named_adapters, torch_optimizer
from simcore.frameworks.deepspeed.experts import layers as experts
from simcore.frameworks.deepspeed.modules.tower_order import check_tower
from simcore.frameworks.deepspeed.reference import check_pairs
from simcore.frameworks.deepspeed.rules import Choice, rules_of
from simcore.frameworks.deepspeed.split.matrices import AS_WHOLE, check_matrices, cuts_of
from simcore.frameworks.deepspeed.split.sequences import (
    FORMAT_OPTION,
    FORMATS,
    axis_of_shards,
    check_shared,
    shared_format,
)
from simcore.frameworks.deepspeed.states.low_bit import check_states, flat_layout, own_optimizer, state_forms
from simcore.frameworks.deepspeed.states.muon import ASSUMED, momentum_of, muon_optimizer, uses_muon
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.frameworks.preference import check_preference
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.operators.hf.chunked import LM_HEAD
from simcore.operators.shared.wide_losses import POLICY
from simcore.placement.capabilities import ONE_STAGE, Capabilities
from simcore.placement.framework import Framework, Optimizer, Rule
from simcore.placement.job import Draft, Job, topology_of, value_problem
from simcore.recording.layer import KEPT_ALONE, PREFERENCE
from simcore.recording.number_formats import PackedWeights

__all__ = ["IN_COMPUTE", "LOSSES", "VERSIONS", "options_of_stage", "packed_weights", "zero_table"]

VERSIONS = ("deepspeed 0.19.6",)
CONFIG: Final = "deepspeed 0.19.6 runtime/zero/config.py"
OFFLOAD: Final = "deepspeed 0.19.6 runtime/zero/offload_config.py"
FILLED: Final = "transformers 5.23 integrations/deepspeed.py trainer_config_finalize"
CAPABILITIES: Final = Capabilities(
    axes=("dp_replicate", "dp_shard", "cp", "tp", "ep", "etp"), offload=("params", "optimizer", "gradients"),
    fixed={"training.sequence_parallel": "False", "training.precision.experts": "auto",
           "training.optimizer.master": "fp32", **ONE_STAGE},
    absent={"pp": ("stages are DeepSpeed's PipelineModule, which is made of a list of layers and not of a model of "
                   "transformers; ZeRO-2 and ZeRO-3 are incompatible with it",
                   "deepspeed 0.19.6 deepspeed/__init__.py initialize, runtime/pipe/engine.py:77")})
IN_COMPUTE: Final = ("training.precision.params", "training.precision.main_grads", "training.precision.grad_reduce",
                      "training.lora.dtype")
"""Keys that can say nothing but the compute dtype."""
LOSSES: Final = ("auto", "hf", "hf_keep_logits", "cut", "liger", LM_HEAD, *KEPT_ALONE, "flash_fp32", *POLICY, "values",
                 *sorted(PREFERENCE))
_OF_ALL: Final[dict[str, tuple[Any, ...]]] = {
    "reduce_bucket_size": (None, "auto", int),
    "allgather_bucket_size": (None, int),
    "overlap_comm": (None, True, False),
    "contiguous_gradients": (None, True, False),
    "reduce_scatter": (True,),
    "round_robin_gradients": (None, True, False),
    FORMAT_OPTION: FORMATS,
    "offload_optimizer": (dict,),
    STORAGE_OPTION: STORAGES,
}
_GATHERS: Final = "stage3_gather_16bit_weights_on_model_save"
_OFFLOADED: Final[dict[str, tuple[Any, ...]]] = {"device": ("cpu",), "pin_memory": (True, False)}
"""Options of the blocks offload_optimizer and offload_param that have an effect without NVMe."""
_TO_NVME: Final[dict[str, tuple[Any, ...]]] = {
    "device": ("nvme",), "pin_memory": (True, False), "nvme_path": (str,), "buffer_count": (int,),
    "fast_init": (True, False), "pipeline_read": (False,), "pipeline_write": (False,)}
"""Options of offload_optimizer with NVMe: [Note: ZeRO-3 and NVMe]."""
_OF_NVME: Final = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "fast_init", "pipeline_read",
                   "pipeline_write")
_OF_3: Final[dict[str, tuple[Any, ...]]] = {
    "sub_group_size": (None, 0, int),
    "stage3_prefetch_bucket_size": (None, "auto", 0, int),
    "stage3_param_persistence_threshold": (None, "auto", 0, int),
    "stage3_max_live_parameters": (None, 0, int),
    "stage3_max_reuse_distance": (None, 0, int),
    _GATHERS: (None, True, False),
    "offload_param": (dict,),
    "zero_hpz_partition_size": (None, int),
    "mics_shard_size": (None, int, -1),
}

_ALIKE: Final = ("ranks of ZeRO-1 and 2", "up to 64 each for itself, of more rank 0 stands for all", "assumed",
                 "what of which tensors lies in a rank's part decides on gradients that are kept, and on copies to the "
                 "host")
_OVERLAPPED: Final = ("time of overlap_comm", "reductions run beside the products, whatever it says", "assumed",
                      "it decides on buffers; without it DeepSpeed waits for each reduction, and stage 3 has no "
                      "stream for them (deepspeed 0.19.6 runtime/zero/stage3.py:336)")


def options_of_stage(stage: int, implementation: str) -> dict[str, tuple[Any, ...]]:
    """Returns the framework options that a stage of ZeRO takes: name -> allowed values or types.

    With those of the layers of `implementation`.
    """
    return {**_OF_ALL, **experts.LAYERS[implementation].options, **(_OF_3 if stage == 3 else {})}


_IDLE_3 = {
    "round_robin_gradients": "0.19.6 runtime/engine.py _configure_zero_optimizer: passed on in stages 1 and 2 alone",
    _GATHERS: "0.19.6 runtime/engine.py save_16bit_model; adapters are gathered all the same"}
"""Options that stage 3 accepts, with the reason why they change no number."""


def _rules(job: Draft, options: dict[str, Any], strategy: ZeroStrategy, threshold: int) -> tuple[Rule, ...]:
    kept = state_forms(job, strategy.moments)
    return experts.with_experts(job, rules_of(Choice(
        strategy.stage, strategy.axis, job.compute, threshold, kept, _spaces(strategy),
        packed_weights(job, options), strategy.is_apart, job.mesh.tp, cuts_of(job.graph) if job.mesh.tp > 1 else (),
        momentum_of(job.compute) if strategy.orthogonalizes else ())))


def zero_table(job: Draft, stage: int) -> Framework:
    """Returns the table of a ZeRO stage (1, 2 or 3) for a job: layouts of all tensors, settings.

    Raises IllegalLayout, InputError or NotYet for a job that is not served.
    """
    options = job.options(options_of_stage(stage, job.graph.implementation))
    _check(job, options, stage)
    _check_shards(job, stage)
    check_shared(job, options)
    check_matrices(job)
    idle = {name for name in _IDLE_3 if name != _GATHERS or options.get(name) or job.scenario.training.method != "full"}
    for name in sorted(idle & options.keys()) if stage == 3 else ():
        job.note(f"framework_options.{name}", "changes no number", _IDLE_3[name])
    threshold = _size(job, options, "stage3_param_persistence_threshold", 100_000) if stage == 3 else 0
    strategy = _strategy(job, options, stage)
    strategy = replace(strategy, moments=flat_layout(job, strategy.axis, stage, strategy.sub_group))
    return Framework(
        name=f"zero{stage}", version=VERSIONS[0],
        rules=_rules(job, options, strategy, threshold),
        units=(),
        strategy=strategy,
        optimizer=_optimizer(job, strategy),
        compute_dtype=job.compute,
        checkpoint=all_or_no_checkpoint(job),
        loss=job.auto("training.loss", job.scenario.training.loss, *loss_with(options, _transformers.DEFAULTS.loss)),
        sequence_parallel=False,
        stages=(tuple(range(len(job.graph.layers))),),
        options=replace(experts.LAYERS[job.graph.implementation].layer_options(job, options),
                        embeddings_require_grad=_transformers.replayed(job),
                        sequences="heads", shards="tensors",
                        patches_require_grad=_transformers.asks_patches(job, options)),
        communicators=_communicators(job, strategy),
        files=experts.files_of(job, plain_files(job, stage, gathers=options.get(_GATHERS) is not False)),
        afterwards=trainer_afterwards(job, job.compute, whole=stage < 3),
        libraries=torch_libraries(job, options),
        assumptions=(_OVERLAPPED, *experts.assumptions(job), *_of_host(strategy),
                     *(_fetched_by_layer(packed_weights(job, options)) if stage == 3 else ()),
                     *((AS_WHOLE,) if stage == 3 and job.mesh.tp > 1 else ()),
                     *((_ALIKE,) * strategy.step_varies_by_rank), *(ASSUMED * strategy.orthogonalizes)),
    )


def _check(job: Draft, options: dict[str, Any], stage: int) -> None:
    if job.compute not in ("bf16", "fp16"):
        raise job.not_yet("training.precision.compute", f"{job.compute} under {job.scenario.framework}")
    CAPABILITIES.check(job)
    check_states(job)
    experts.refuse_capacity(job)
    experts.check_experts(job, stage)
    experts.LAYERS[job.graph.implementation].check(job, options)
    job.refuse_given(dict.fromkeys(IN_COMPUTE, job.compute))
    if job.scenario.training.method != "full":
        check_named_adapters(job)
        if stage == 3 and adapts_experts(job):
            raise job.not_yet(TARGETS, "adapters of fused experts under zero3, which gathers a parameter when it "
                              "is read (served: zero1, zero2, ddp, fsdp2)")
    job.one_of("training.loss", job.scenario.training.loss, LOSSES)
    check_preference(job, options, second=True)
    if stage == 3:
        check_pairs(job, options, params_on_host=_part(job, "params"))
    if stage > 1:
        check_tower(job, stage, options)


def packed_weights(job: Draft, options: dict[str, Any]) -> PackedWeights | None:
    """Returns the format of packed weights, None where there are none.

    IllegalLayout for another floating storage type than the model's: it would be cast, value by value.
    """
    packed = packed_of(job, options)
    if packed and packed.storage not in ("uint8", job.compute):
        raise job.illegal(f"framework_options.{STORAGE_OPTION}", f"packed values in {packed.storage} would be cast to "
                          f"{job.compute}", "deepspeed 0.19.6 runtime/engine.py _cast_module_mixed_precision")
    return packed


def _strategy(job: Draft, options: dict[str, Any], stage: int) -> ZeroStrategy:
    overlapped = job.flag(options, "overlap_comm", f"{CONFIG} overlap_comm_valid: with stage 3", default=stage == 3)
    bucket = _size(job, options, "reduce_bucket_size", 500_000_000)
    states, params = _offloaded(job, options, stage)
    swap = _swap_buffers(job, options, stage)
    pinned = [options[key].get("pin_memory", True) for key, on in (("offload_optimizer", states),
                                                                   ("offload_param", params)) if key in options and on]
    away = (states, params, all(pinned), states and job.scenario.num_microbatches > 1)
    apart = not job.flag(options, "contiguous_gradients", f"{CONFIG} contiguous_gradients", default=True)
    if apart and any(spec.copies > 1 and spec.trainable for specs in job.graph.tensors for spec in specs):
        raise job.not_yet("framework_options.contiguous_gradients", "false with experts that train, each a module")
    axis, reduced = axis_of_shards(job), shared_format(job, options, stage)
    if stage < 3:
        apart = apart and not states
        turns = job.flag(options, "round_robin_gradients", f"{CONFIG} round_robin_gradients", default=False)
        return ZeroStrategy(stage, axis, bucket, 1 + overlapped, 0, 0, 0, 0, *away, round_robin=turns, is_apart=apart,
                            reduce_dtype=reduced, orthogonalizes=uses_muon(job))
    return ZeroStrategy(stage, axis, bucket, 1, _size(job, options, "stage3_prefetch_bucket_size", 50_000_000),
                _size(job, options, "stage3_max_live_parameters", 1_000_000_000),
                _size(job, options, "stage3_max_reuse_distance", 1_000_000_000),
                _size(job, options, "sub_group_size", 1_000_000_000), *away,
                secondary=_secondary(job, options), is_apart=apart, swap_buffers=swap,
                reduce_dtype=reduced, orthogonalizes=uses_muon(job))


def _check_shards(job: Job, stage: int) -> None:
    """Refuses copies of shards, which would be MiCS.

    As measured (`tests/truth/deepspeed/shards-0.19.6.json`), 0.19.6 scatters MiCS's gradients over all ranks and not
    over a shard's, so that shards get pieces of half their length; 0.19.8 has no MiCS. transformers 5.23 makes
    parameters by zero.Init (`modeling_utils.py`, get_init_context), at which `mics.py`:385 stops.
    """
    if job.mesh.dp_replicate > 1 and stage < 3:
        raise job.illegal("mesh.dp_replicate", f"stage {stage} cuts over all ranks: they are dp_shard", CONFIG)
    mics = job.scenario.framework_options.get("mics_shard_size")
    if job.mesh.dp_replicate > 1 or mics not in (None, -1):
        at = "mesh.dp_replicate" if job.mesh.dp_replicate > 1 else "framework_options.mics_shard_size"
        raise job.illegal(at, "copies of shards (MiCS): gradients are scattered over all ranks, in pieces of another "
                          "length than their parts, and from_pretrained stops: no MiCS_CommGroups attached. Served: "
                          "zero_hpz_partition_size", "0.19.6 runtime/zero/stage3.py:626, mics.py:385")


def _communicators(job: Job, strategy: ZeroStrategy) -> tuple[str, ...]:
    """Axes of all ranks, and of the fewer ranks that share secondary shards of parameters."""
    axis = strategy.axis
    names = (axis, "cp", "tp", *[f"{axis}/{strategy.secondary}"] * (strategy.secondary > 0), *experts.axes_of(job))
    return tuple(name for name in names if job.mesh.axis(name).size > 1)


def _secondary(job: Job, options: dict[str, Any]) -> int:
    """zero_hpz_partition_size, 0 if it has no effect."""
    at, ranks = "zero_hpz_partition_size", job.mesh.axis(axis_of_shards(job)).size
    if ranks % min(size := options.get(at) or 1, ranks):
        raise job.illegal(f"framework_options.{at}", f"{ranks} is not divisible by {size}",
                          "deepspeed 0.19.6 utils/groups.py _create_zero_param_parallel_group")
    if size > 1 and _part(job, "params"):
        raise job.not_yet(f"framework_options.{at}", "second parts of parameters on the host")
    return min(size, ranks) if size > 1 else 0


# ---- what lies on the host ------------------------------------------------------------------------------------------
def _offloaded(job: Job, options: dict[str, Any], stage: int) -> tuple[bool, bool]:
    """(offload_optimizer, offload_param), as `training.offload` says; the options have their details."""
    parts = {name: _part(job, name) for name in ("optimizer", "params", "gradients")}
    if parts["params"] and stage < 3:
        raise job.illegal("training.offload.params", f"offload_param is valid only with stage 3, and this is {stage}",
                          f"{CONFIG} offload_param")
    if parts["gradients"] and not parts["optimizer"]:
        raise job.illegal("training.offload.gradients", "gradients go to the CPU with offload_optimizer and with "
                          "nothing else (write optimizer: host)", f"{CONFIG} offload_optimizer")
    for key, name in (("offload_optimizer", "optimizer"), ("offload_param", "params")):
        _check_block(job, options, key, is_on=parts[name])
    return parts["optimizer"], parts["params"]


def _swap_buffers(job: Draft, options: dict[str, Any], stage: int) -> int:
    """`buffer_count` of states on NVMe, 0 without it; at least one for each tensor of a sub-group and its gradient."""
    if job.scenario.training.offload.part("optimizer")[0] != "nvme":
        return 0
    topology, at = topology_of(job.scenario), "training.offload.optimizer"
    if stage < 3:
        raise job.not_yet(at, f"nvme under stage {stage}, which keeps states in the CPU's memory whatever it is asked "
                          "(served: host)")
    if topology.node.nvme is None:
        raise InputError(Problem(job.scenario.where("topology"), f"{topology.name} does not say node.nvme (read, "
                                 "write), at which states would be swapped: no shipped machine does, drives differ"))
    requested_count = options.get("offload_optimizer", {}).get("buffer_count")
    count = int(job.auto("framework_options.offload_optimizer.buffer_count",
                         "auto" if requested_count is None else str(requested_count), "4", OFFLOAD))
    if count < 2 + (moments := len(state_forms(job, None))):
        raise job.illegal("framework_options.offload_optimizer", f"buffer_count {count}: a master, {moments} "
                          "moments and a gradient are read together", "deepspeed 0.19.6 runtime/swap_tensor/"
                          "partitioned_optimizer_swapper.py: assert pinned_buffers is not None")
    return count


def _part(job: Job, name: str) -> bool:
    """True if all of it is on the host or its drives."""
    space, fraction = job.scenario.training.offload.part(name)
    job.one_of(f"training.offload.{name}", space, ("none", "host", *(("nvme",) if name == "optimizer" else ())))
    if 0 < fraction < 1:
        raise job.not_yet(f"training.offload.{name}", "a part of it on the host (`ratio` of offload_optimizer: whole "
                          "sub-groups of ZeRO-3)")
    return fraction > 0


def _check_block(job: Job, options: dict[str, Any], key: str, *, is_on: bool) -> None:
    """Refuses unknown options and values in the block."""
    at, part = f"framework_options.{key}", "optimizer" if key == "offload_optimizer" else "params"
    if key in options and not is_on:
        raise InputError(Problem(job.scenario.where(*at.split(".")), f"{key}: changes nothing without "
                                 f"training.offload.{part}: host"))
    known = _TO_NVME if job.scenario.training.offload.part(part)[0] == "nvme" else _OFFLOADED
    for name, value in options.get(key, {}).items():
        where = job.scenario.where("framework_options", key)
        if name in _OF_NVME and name not in known:
            raise InputError(Problem(where, f"{key}.{name}: is about NVMe alone", OFFLOAD))
        if name not in known:
            raise InputError(Problem(where, f"unknown option {name!r} of {key}: it knows {', '.join(known)}"))
        if not any(type(value) is (choice if isinstance(choice, type) else type(choice))
                   and choice in (value, type(value)) for choice in known[name]):
            problem = value_problem(where, f"{key}.{name}", value, known[name])
            raise (NotYet if problem.message.startswith("not yet: ") else InputError)(problem)


def _optimizer(job: Draft, strategy: ZeroStrategy) -> Optimizer:
    """Optimizer of the job; on the host it is DeepSpeedCPUAdam unless the scenario asks for torch's: fused, or a loop.

    DeepSpeed takes torch's where its own configuration asks for it (`torch_adam`), or zero_force_ds_cpu_optimizer is
    off.
    """
    if strategy.orthogonalizes:
        apart, turns = strategy.is_apart, strategy.round_robin
        return muon_optimizer(job, strategy.stage, on_host=strategy.states_on_host, refused=(
            *["contiguous_gradients: false"] * apart, *["round_robin_gradients: true"] * turns))
    if not strategy.states_on_host:
        return own_optimizer(job) or torch_optimizer(
            job, "transformers 5.23 training_args.py: adamw_torch_fused from torch 2.8 on", "fused", plain=True,
            low_rank=OF_ZERO)
    name, kind = job.scenario.training.optimizer.name, job.scenario.training.optimizer.implementation
    if not OPTIMIZERS[name].host_states:
        raise _of_client(job, "name", name)
    if job.scenario.training.optimizer.weight_decay is not None:
        raise job.not_yet("training.optimizer.weight_decay", f"weight decay of {name} on the host")
    served = ("auto", "cpu") if strategy.swap_buffers or not OPTIMIZERS[name].is_adam else (
        "auto", "cpu", "fused", "for_loop")
    if kind not in served and kind in OPTIMIZERS[name].forms:
        raise _of_client(job, "implementation", kind)
    job.one_of("training.optimizer.implementation", kind, served)
    job.auto("training.optimizer.implementation", kind, "cpu", "transformers 5.23 integrations/deepspeed.py "
             f"deepspeed_optim_sched; deepspeed 0.19.6 ops/{name.removesuffix('w')}/cpu_{name.removesuffix('w')}.py")
    return Optimizer(name, "for_loop" if kind == "for_loop" else "fused")


def _of_client(job: Job, at: str, given: str) -> IllegalLayout:
    told = f"You are using ZeRO-Offload with a client provided optimizer ({given}): either use DeepSpeedCPUAdam"
    return job.illegal(f"training.optimizer.{at}", told, "deepspeed 0.19.6 runtime/engine.py _configure_optimizer")


def _of_host(strategy: ZeroStrategy) -> tuple[tuple[str, str, str, str], ...]:
    if not (strategy.states_on_host or strategy.params_on_host):
        return ()
    drives = "; drives are read, then the CPU updates, then they are written" * (strategy.swap_buffers > 0)
    return (("time of offload", "copies at the pace of pinned memory, of gradients in line with kernels; the CPU's "
             f"step at 0.7 of its memory bandwidth{drives}", "assumed", "deepspeed 0.19.6 ops/adam/cpu_adam.py: a "
             "fused step; no time is published"),)


def _size(job: Draft, options: dict[str, Any], name: str, default: int) -> int:
    """Size in elements: as given, DeepSpeed's default, or the value that transformers writes for "auto"."""
    hidden = job.graph.architecture.hidden
    filled = {"reduce_bucket_size": hidden * hidden, "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
              "stage3_param_persistence_threshold": 10 * hidden}
    requested = options.get(name)
    if requested == "auto":
        return int(job.auto(f"framework_options.{name}", "auto", str(filled[name]), FILLED))
    return int(job.auto(f"framework_options.{name}", "auto" if requested is None else str(requested), str(default),
                        CONFIG))


def _fetched_by_layer(packed: PackedWeights | None) -> tuple[tuple[str, str, str, str], ...]:
    """Assumptions about gathered parameters; of weights in 4 bits also why recomputation does not release them."""
    of_layer = ("parameters under zero3", "in the order of modules, but there from the begin of a layer to its end",
                "assumed", "up to a layer too much in forward; the recorded order, so not the first step")
    if packed is None or packed.is_tensor:
        return (of_layer,)
    return (of_layer, ("gathered 4-bit weights", "each stays, whole, until backward is over, also with recompute",
                       "derived", "bitsandbytes 0.50.2 autograd/_functions.py MatMul4Bit: a view of what DeepSpeed "
                       "0.19.6 gathered, in its graph"))


def _spaces(strategy: ZeroStrategy) -> tuple[str, str]:
    away = "nvme" if strategy.swap_buffers else "host"
    return (away if strategy.states_on_host else "device"), ("host" if strategy.params_on_host else "device")
