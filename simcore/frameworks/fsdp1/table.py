"""torch's FullyShardedDataParallel (FSDP1, HSDP), torch 2.13, around Hugging Face models.

Treatment of a unit: [Note: FSDP1] in `simcore/frameworks/fsdp1/strategy.py`. Defaults are the class's own
(`torch/distributed/fsdp/fully_sharded_data_parallel.py`); those of trainers around it are scenarios. Parameters rest in
fp32 and are used in the compute dtype (MixedPrecision(param_dtype)), as accelerate 1.15 makes it. Every layer is a
unit, the root is the unit of all other parameters (transformer_auto_wrap_policy); `wrap: root` is without the policy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from simcore.frameworks.common import llmfoundry as _llmfoundry
from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.afterwards import trainer_afterwards
from simcore.frameworks.common.checkpoint_files import fsdp1_files
from simcore.frameworks.common.expert_adapters import TARGETS, adapts_experts
from simcore.frameworks.common.expert_modules import LAYERS
from simcore.frameworks.common.kernels import torch_libraries
from simcore.frameworks.common.liger import loss_with
from simcore.frameworks.common.low_rank.refusals import NOT_SERVED, OF_FLAT_UNITS
from simcore.frameworks.common.qlora import STORAGE_OPTION, STORAGES, is_packed, packed_of
from simcore.frameworks.common.torch import (
    OF_POLICIES,
    States,
    all_or_no_checkpoint,
    check_named_adapters,
    offloaded_together,
    states_of,
    torch_optimizer,
)
from simcore.frameworks.common.trainer import Trainers
from simcore.frameworks.fsdp1.flat_states import by_parts
from simcore.frameworks.fsdp1.strategy import Fsdp1Strategy, ShardingStrategy
from simcore.frameworks.fsdp1.towers import FLATTEN, around_tower, check_tower, is_end_of_tower
from simcore.frameworks.fsdp2.split.ulysses import check_split, shard_axis
from simcore.frameworks.fsdp2.units import Wrapping, units
from simcore.models.graph import ModelGraph
from simcore.operators.hf.chunked import LM_HEAD
from simcore.operators.hf.options import HfOptions
from simcore.placement.capabilities import ONE_STAGE, PLAIN_TORCH, Capabilities
from simcore.placement.framework import Framework, Rule, TensorPolicy, Unit, UpdateTime
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Flat, Partial, Placements, TensorLayout
from simcore.recording.layer import KEPT, KEPT_ALONE
from simcore.recording.number_formats import PackedWeights
from simcore.recording.options import ImplementationOptions

__all__ = ["ADAPTED", "OPTIONS", "TRAINERS", "VERSIONS", "in_fp8", "table"]

VERSIONS = ("torch 2.13",)
RULE: Final = "torch 2.13 torch/distributed/fsdp/fully_sharded_data_parallel.py"
INIT: Final = "torch 2.13 torch/distributed/fsdp/_init_utils.py"
OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "sharding_strategy": (None, "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"),
    "backward_prefetch": (None, "BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "forward_prefetch": (None, True, False),
    "limit_all_gathers": (None, True, False),
    "use_orig_params": (None, True, False),
    "sync_gradients": (None, "last", "every"),
    "wrap": (None, "layers_root", "root"),
}
_ADAPTERS: Final = "layers_adapters"
ADAPTED: Final = {"wrap": _ADAPTERS}
"""Policy of PEFT, which accelerate takes (transformers 5.23 distributed/fsdp.py update_fsdp_plugin_peft)."""
_OF_TRANSFORMERS: Final[dict[str, tuple[Any, ...]]] = {**OPTIONS, STORAGE_OPTION: STORAGES,
                                                       "wrap": (*OPTIONS["wrap"], _ADAPTERS)}
OF_LAYERS: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "hf": _transformers.LAYER_OPTIONS,
    "llmfoundry": {"attn_impl": _llmfoundry.OPTIONS["attn_impl"],
                   "wrap": (None, "separate_embedding", "layers_root", "root")},
}
_ACCELERATE: Final = replace(
    _transformers.DEFAULTS,
    stored=("fp32", "accelerate 1.15 accelerator.py: trained parameters are upcast under mixed precision"),
    reduce=("compute", "torch 2.13 fsdp/api.py MixedPrecision: reduce_dtype=None is param_dtype"))
_CLASS: Final[dict[str, tuple[Any, str]]] = {
    "use_orig_params": (False, f"{RULE}: use_orig_params=False"),
    "backward_prefetch": ("BACKWARD_PRE", f"{RULE}: backward_prefetch=BACKWARD_PRE"),
    "wrap": ("layers_root", "transformer_auto_wrap_policy over the model's layers, which trainers ask for"),
}
"""Defaults of the class, which a trainer may replace."""
ASKED: Final = dict.fromkeys(LAYERS, _CLASS) | {"llmfoundry": _CLASS | _llmfoundry.FSDP1}
"""Defaults under the trainer around each implementation."""
_FROZEN: Final = ("accelerate 1.15 accelerator.py prepare_model: flat parameters that train are upcast under mixed "
                  "precision, frozen ones stay")
CAPABILITIES: Final = Capabilities(
    axes=("dp_replicate", "dp_shard"), offload=("params", "gradients", "optimizer", "activations"),
    fixed={**PLAIN_TORCH, **ONE_STAGE})
_STAGES: Final = {"pp": ("Combining FSDP with pipeline parallelism is not supported yet",
                         "transformers 5.23 distributed/configuration_utils.py:188; accelerate 1.15.0 "
                         "parallelism_config.py has no such axis")}
SPLIT: Final = replace(CAPABILITIES, axes=("dp_replicate", "dp_shard", "cp"))
LOSSES: Final = ("auto", "hf", "hf_keep_logits", "cut", "liger", LM_HEAD, *KEPT_ALONE, *OF_POLICIES)
WITHIN: Final[dict[str, ShardingStrategy]] = {"FULL_SHARD": "FULL_SHARD", "HYBRID_SHARD": "FULL_SHARD",
                                      "SHARD_GRAD_OP": "SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP",
                                      "NO_SHARD": "NO_SHARD"}
PREFETCH: Final = {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post", "NO_PREFETCH": ""}


def table(job: Draft) -> Framework:
    """Returns FSDP1's table for a job: layouts of all tensors, units, settings.

    Raises IllegalLayout, InputError or NotYet for a job that is not served.
    """
    trainer = TRAINERS[job.graph.implementation]
    options, defaults = job.options(trainer.options), trainer.defaults
    _check(job, options)
    precision = job.scenario.training.precision
    by_default = (job.compute, f"{_FROZEN}: as it is read") if options.get("wrap") == _ADAPTERS else defaults.stored
    stored = job.auto("training.precision.params", precision.params, *_transformers.stored_as(job, by_default))
    adapters = _adapter_format(job, options, stored)
    reduce = job.auto("training.precision.grad_reduce", precision.grad_reduce, job.compute, defaults.reduce[1])
    strategy = _strategy(job, options, reduce)
    packed = _packed(job, options, stored, strategy)
    _check_offload(job, strategy)
    units_ = _units(job, options, reduce)
    rules = _rules(stored, adapters, job.compute, states_of(job, plain=True), strategy, packed)
    ranks = 1 if strategy.sharding_strategy == "NO_SHARD" else job.mesh.axis(strategy.axis).size
    return Framework(
        name="fsdp1", version=VERSIONS[0],
        rules=rules if strategy.aligned else by_parts(job, rules, units_, ranks), units=units_,
        strategy=strategy,
        optimizer=torch_optimizer(job, *reversed(defaults.optimizer), plain=True,
                                  low_rank=OF_FLAT_UNITS if job.mesh.dp_shard > 1 else NOT_SERVED),
        compute_dtype=job.compute,
        checkpoint=all_or_no_checkpoint(job),
        loss=job.auto("training.loss", job.scenario.training.loss, *loss_with(options, defaults.loss)),
        sequence_parallel=False,
        stages=(tuple(range(len(job.graph.layers))),),
        options=_layer_options(job, options),
        communicators=tuple(axis for axis in (shard_axis(job), "dp_replicate", "cp") if job.mesh.axis(axis).size > 1),
        files=fsdp1_files(job),
        afterwards=trainer_afterwards(job, trainer.kept_logits(job, stored), whole=False, loop=trainer.evaluation,
                                       writes=trainer.hub_files),
        libraries=replace(torch_libraries(job, options), logged=trainer.logged),
        assumptions=_assumptions(strategy),
    )


def _layer_options(job: Draft, options: dict[str, Any]) -> ImplementationOptions:
    made = TRAINERS[job.graph.implementation].layer_options(job, options)
    if job.graph.architecture.has_tower:
        made = around_tower(job, made, options)
    if isinstance(made, HfOptions):
        made = replace(made, wide_logits=job.scenario.training.loss in KEPT)
    if options.get("wrap") != _ADAPTERS:
        return made
    assert isinstance(made, HfOptions)
    return replace(made, adapter_units=True, embeddings_require_grad=_transformers.replayed(job))


def _adapter_format(job: Draft, options: dict[str, Any], stored: str) -> str:
    """Dtype of adapters at rest: that of all parameters, or accelerate's where they are units of their own."""
    if options.get("wrap") != _ADAPTERS:
        return stored
    return job.auto("training.lora.dtype", job.scenario.training.lora.dtype, "fp32", f"{_FROZEN}: upcast")


def in_fp8(job: Draft) -> ModelGraph:
    """Returns the job's model with linears that compute in fp8; NotYet if its layers are not served so."""
    trainer = TRAINERS[job.graph.implementation]
    if trainer.in_fp8 is None:
        raise job.not_yet("training.precision.compute", f"compute in fp8 in the layers of {job.graph.implementation}")
    return trainer.in_fp8(job)


def _check(job: Draft, options: dict[str, Any]) -> None:
    if job.scenario.training.optimizer.name == "muon":
        raise job.illegal("training.optimizer.name", "Muon only supports 2D parameters: FSDP 1's are flat",
                          "torch 2.13 optim/_muon.py __init__; distributed/fsdp/_flat_param.py")
    absent = {} if job.graph.implementation == "llmfoundry" else _STAGES
    replace(SPLIT if job.mesh.cp > 1 else CAPABILITIES, absent=absent).check(job)
    if job.mesh.cp > 1:
        check_split(job, options)
    check_tower(job, options)
    TRAINERS[job.graph.implementation].check(job, options)


def _check_transformers(job: Job, options: dict[str, Any]) -> None:
    _transformers.check_layers(job, {"experts_implementation": options.get("experts_implementation")})
    job.refuse_capacity(_transformers.NO_CAPACITY)
    job.one_of("training.loss", job.scenario.training.loss, LOSSES)


TRAINERS: Final[Trainers] = {
    "hf": replace(_transformers.TRAINER, options=_OF_TRANSFORMERS | OF_LAYERS["hf"], defaults=_ACCELERATE,
                  check=_check_transformers),
    **{name: replace(_transformers.TRAINER, options={**_OF_TRANSFORMERS, **layers.options}, defaults=_ACCELERATE,
                     check=layers.check, layer_options=layers.layer_options)
       for name, layers in LAYERS.items() if name != "hf"},
    "llmfoundry": replace(_llmfoundry.TRAINER, options=OPTIONS | OF_LAYERS["llmfoundry"]),
}


# ---- what is asked for ----------------------------------------------------------------------------------------------
def _strategy(job: Draft, options: dict[str, Any], reduce: str) -> Fsdp1Strategy:
    strategy, mesh = _sharding_strategy(job, options), job.mesh
    asked = ASKED[job.graph.implementation]
    original, source = asked["use_orig_params"]
    aligned = job.flag(options, "use_orig_params", source, default=bool(original))
    _check_adapters(job, options, aligned=aligned)
    requested_prefetch = options.get("backward_prefetch")
    prefetch = job.auto("framework_options.backward_prefetch", requested_prefetch or "auto",
                        *asked["backward_prefetch"])
    job.flag(options, "limit_all_gathers", f"{RULE}: limit_all_gathers=True", default=True)
    sync = job.auto("framework_options.sync_gradients", options.get("sync_gradients") or "auto", "every",
                    f"{RULE}: gradients are reduced after every backward outside no_sync()")
    return Fsdp1Strategy(strategy, shard_axis(job), "dp_replicate" if mesh.dp_replicate > 1 else "", reduce,
                         PREFETCH[prefetch],
                   job.flag(options, "forward_prefetch", f"{RULE}: forward_prefetch=False", default=False), aligned,
                   sync if job.scenario.num_microbatches > 1 else "every",
                   job.scenario.training.offload.part("params")[1] > 0)


def _sharding_strategy(job: Draft, options: dict[str, Any]) -> ShardingStrategy:
    """Strategy among the ranks of dp_shard, as asked or by default; a second axis makes it a hybrid one."""
    mesh, at, shards = job.mesh, "framework_options.sharding_strategy", job.mesh.axis(shard_axis(job)).size
    hybrid = shards > 1 and mesh.dp_replicate > 1
    default = "HYBRID_SHARD" if hybrid else "NO_SHARD" if shards == 1 else "FULL_SHARD"
    name = job.auto(at, options.get("sharding_strategy") or "auto", default,
                    f"{RULE}: sharding_strategy=FULL_SHARD; a second axis makes it HYBRID_SHARD, and {INIT}: NO_SHARD "
                    "for one rank")
    if name == "NO_SHARD" and shards > 1:
        raise job.illegal(at, f"NO_SHARD cuts nothing: its ranks are dp_replicate, and {shard_axis(job)} is {shards}",
                          f"{RULE} ShardingStrategy.NO_SHARD")
    if "HYBRID" in name and shards == 1:
        raise job.illegal(at, f"{name} cuts within dp_shard, which is 1",
                          f"{INIT} _init_process_group_state_for_hybrid_shard")
    if mesh.dp_replicate > 1 and shards > 1 and "HYBRID" not in name:
        raise job.illegal(at, f"{name} has one group of ranks: dp_replicate must be 1", f"{INIT} "
                          "_init_process_group_state")
    return "NO_SHARD" if shards == 1 else WITHIN[name]


def _check_adapters(job: Draft, options: dict[str, Any], *, aligned: bool) -> None:
    """Refuses adapters without `use_orig_params`, unless they are units: a flat parameter is trained or frozen."""
    if job.scenario.training.method == "full":
        if options.get("wrap") == _ADAPTERS:
            raise job.illegal("framework_options.wrap", f"{_ADAPTERS} wraps adapters: training.method has none",
                              "transformers 5.23 distributed/fsdp.py update_fsdp_plugin_peft")
        return
    check_named_adapters(job)
    if options.get("wrap") == _ADAPTERS:
        _check_adapter_units(job, options)
        return
    if not aligned:
        raise job.illegal("framework_options.use_orig_params", "Must flatten tensors with uniform `requires_grad` when "
                          "`use_orig_params=False`: a layer has frozen weights and adapters (write use_orig_params: "
                          f"true, or wrap: {_ADAPTERS} for PEFT's fsdp_auto_wrap_policy)",
                          "torch 2.13 torch/distributed/fsdp/_flat_param.py _validate_tensors_to_flatten")
    if adapts_experts(job):
        raise job.illegal(TARGETS, "Output 0 of View is a view and its base has been modified inplace: PEFT adds "
                          "the adapters of fused experts to a view of the flat parameter (served: fsdp2)",
                          "PEFT 0.21.2 tuners/lora/layer.py ParamWrapper under torch 2.13 FullyShardedDataParallel")
    stored = job.scenario.training.precision.params
    if job.scenario.training.lora.dtype not in ("auto", "fp32" if stored == "auto" else stored):
        raise job.illegal("training.lora.dtype", "Must flatten tensors with uniform dtype",
                          "torch 2.13 torch/distributed/fsdp/_flat_param.py _validate_tensors_to_flatten")


def _check_adapter_units(job: Draft, options: dict[str, Any]) -> None:
    """Refuses what is not served where each matrix of an adapter is a unit: [Note: PEFT's units]."""
    sharding = options.get("sharding_strategy")
    served = (("adapters of experts", TARGETS, adapts_experts(job)),
              ("DoRA", "training.lora.use_dora", job.scenario.training.lora.use_dora),
              ("backward_prefetch: BACKWARD_POST", "framework_options.backward_prefetch",
               options.get("backward_prefetch") == "BACKWARD_POST"),
              ("forward_prefetch", "framework_options.forward_prefetch", bool(options.get("forward_prefetch"))),
              (f"sharding_strategy: {sharding}", "framework_options.sharding_strategy",
               sharding not in (None, "FULL_SHARD", "HYBRID_SHARD")))
    for what, at, asked in served:
        if asked:
            raise job.not_yet(at, f"{_ADAPTERS} with {what}")


def _packed(job: Draft, options: dict[str, Any], stored: str, strategy: Fsdp1Strategy) -> PackedWeights | None:
    """Returns the format in which frozen linears are packed in 4 bits; None without qlora.

    [Note: FSDP1 and weights in 4 bits] A flat parameter has one floating type, so packed columns must be stored in that
    of the other parameters, and it must be that of the products, to which a flat parameter is cast, packed values and
    all. Constants are attributes of the weights: every rank has all of them. bitsandbytes 0.50.2 `nn/modules.py`,
    fix_4bit_weight_quant_state_from_module, makes the weight a `Params4bit` anew in forward, so a unit that is not
    freed behind it is refused (`tests/truth/fsdp1/qlora-torch-2.13.0.json`).
    """
    if job.scenario.training.method == "qlora" and job.graph.implementation not in LAYERS:
        raise job.not_yet("training.method", f"qlora with the layers of {job.graph.implementation} under fsdp1")
    packed, at = packed_of(job, options), f"framework_options.{STORAGE_OPTION}"
    if packed is None:
        return None
    if packed.storage == "uint8":
        raise job.illegal(at, f"Cannot flatten integer dtype tensors: write {STORAGE_OPTION}: bfloat16", FLATTEN)
    if stored != job.compute:
        raise job.illegal("training.precision.params", f"{stored}: packed values would be cast to {job.compute} (write "
                          f"params: {job.compute}, which accelerate keeps with mixed_precision: no)",
                          "torch 2.13 torch/distributed/fsdp/_flat_param.py _use_low_precision_shard; accelerate 1.15 "
                          "accelerator.py: flat parameters that train are upcast under mixed precision")
    if packed.storage != stored:
        raise job.illegal(at, f"Must flatten tensors with uniform dtype but got {packed.storage} and {stored}",
                          FLATTEN)
    if strategy.sharding_strategy == "SHARD_GRAD_OP":
        raise job.illegal("framework_options.sharding_strategy", "FSDP does not support changing the parameters "
                          "between forward and backward for SHARD_GRAD_OP: bitsandbytes makes each packed weight anew",
                          "torch 2.13 torch/distributed/fsdp/_flat_param.py _writeback_orig_params")
    return packed


def _check_offload(job: Job, strategy: Fsdp1Strategy) -> None:
    """Refusals of CPUOffload(offload_params=True): parameters, and with them gradients and the step."""
    offloaded_together(job, "offload_params moves parameters, and with them gradients and optimizer states",
                       "torch 2.13 torch/distributed/fsdp/api.py CPUOffload")
    if strategy.on_host and strategy.sync == "every" and job.scenario.num_microbatches > 1:
        raise job.illegal("training.offload", "Gradient accumulation outside no_sync() does not work with CPU "
                          "offloading (sync_gradients: last is inside it)",
                          "torch 2.13 torch/distributed/fsdp/_flat_param.py prepare_gradient_for_backward")
    if strategy.on_host and strategy.sharding_strategy == "NO_SHARD":
        raise job.not_yet("training.offload", "parameters on the host that are not sharded")


# ---- the table ------------------------------------------------------------------------------------------------------
def _units(job: Draft, options: dict[str, Any], reduce: str) -> tuple[Unit, ...]:
    """Units of the job, the root first, then every layer, unless all parameters are one unit."""
    stages = (tuple(range(len(job.graph.layers))),)
    wrapping = Wrapping(root=False, layers=True, last=True, head=False, experts=True, separate=False,
                        loss_inside=TRAINERS[job.graph.implementation].defaults.loss_inside, experts_unit=False,
                        experts_apart=False, packed_apart=False, replicates=job.mesh.dp_replicate > 1,
                        checkpointed=False, compute=job.compute, reduce=reduce)
    asked = ASKED[job.graph.implementation]
    wrap = job.auto("framework_options.wrap", options.get("wrap") or "auto", *asked["wrap"])
    wrapped = tuple(replace(unit, shard_axis=shard_axis(job)) for unit in units(job.graph, stages, wrapping))
    if wrap == "separate_embedding":
        return _with_embedding(job, wrapped)
    if wrap == "layers_root":
        return wrapped
    if wrap == _ADAPTERS:
        return _with_adapters(job, wrapped)
    members = sorted(member for unit in wrapped for member in unit.members)
    return (replace(wrapped[0], members=tuple(members)),)


def _with_embedding(job: Job, units_: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Units with one for the token embedding, which a tied head calls again; positions and norm stay in the root."""
    root, *layers = units_
    (stem, numbers), *rest = root.members
    members = ((stem, numbers[1:]), *rest) if numbers[1:] else tuple(rest)
    token = replace(root, name="transformer.wte", members=((stem, numbers[:1]),), first=stem, last=job.graph.head,
                    is_root=False, explicit=True, reshard_after_forward=True)
    return (replace(root, members=members), token, *layers)


def _with_adapters(job: Job, units_: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Units with one for each matrix of an adapter, behind the unit of its layer: [Note: PEFT's units]."""
    found: list[Unit] = []
    for unit in units_:
        members, inside = [], []
        for layer, numbers in unit.members:
            specs = job.graph.tensors[job.graph.layers[layer].kind]
            apart = [number for number in numbers if specs[number].module == "adapter"]
            members.append((layer, tuple(number for number in numbers if number not in apart)))
            inside += [replace(unit, name=f"{job.graph.layers[layer].path}.{specs[number].path}",
                               members=((layer, (number,)),), first=layer, last=layer, inner="adapter", is_root=False,
                               explicit=False) for number in apart]
        found += [replace(unit, members=tuple(one for one in members if one[1])), *inside]
    return tuple(found)


def _assumptions(strategy: Fsdp1Strategy) -> tuple[tuple[str, str, str, str], ...]:
    if not strategy.on_host:
        return ()
    return (("time of offload", "copies at the pace of pinned memory, beside kernels; the CPU's step at 0.7 of its "
             "memory bandwidth", "assumed", "torch 2.13 distributed/fsdp/_runtime_utils.py; optim/adam.py; no time is "
             "published"),)


@lru_cache(maxsize=64)
def _rules(stored: str, adapters: str, compute: str, kept: States, strategy: Fsdp1Strategy,
           packed: PackedWeights | None) -> tuple[Rule, ...]:
    """Rules of shards of flat parameters; all parameters of a unit are stored in one dtype.

    `adapters`: dtype of adapters, another than `stored` only where they are units of their own.
    """
    cut: Placements = () if strategy.sharding_strategy == "NO_SHARD" else ((strategy.axis, Flat("unit")),)
    space = "host_pinned" if strategy.on_host else "device"
    rest, unsharded = TensorLayout(cut, stored, space), TensorLayout((), compute)
    unreduced = TensorLayout(((strategy.axis, Partial()),), compute)
    plain = TensorLayout((), "fp32")
    buffer = TensorPolicy("buffer", plain, plain, plain, plain, at_rest_category="buffer", updated=UpdateTime.NEVER)
    states = kept.of(cut, adapters, "host" if strategy.on_host else "device", flat=bool(cut) or not strategy.aligned)
    policy = TensorPolicy("flat", rest, unsharded, unreduced, rest, states)
    columns = () if packed is None else (Rule(is_packed, replace(
        policy, name="packed", at_rest=TensorLayout(cut, packed.storage, space, packed=packed), optimizer_states=())),)
    kept_wide = TensorLayout(cut, adapters, space)
    apart = () if adapters == stored else (Rule(lambda t: t.module == "adapter", replace(
        policy, name="adapters", at_rest=kept_wide, grad=kept_wide)),)
    viewed = Rule(is_end_of_tower, replace(policy, name="viewed", optimizer_states=(), differentiated=True))
    factors = replace(buffer, name="factors", at_rest=TensorLayout((), stored))
    return (Rule(lambda t: t.module == "factors", factors), Rule(lambda t: t.is_buffer, buffer), *columns, *apart,
            viewed, Rule(lambda t: True, policy))
