"""Plain PyTorch FSDP2 (`fully_shard`) and HSDP, torch 2.13, around Hugging Face models.

Rules: `torch/distributed/fsdp/_fully_shard/` (one `fully_shard` call is one unit; every parameter is cut on dimension 0
in `ceil(d0 / W)` rows and its storage is padded; `reshard_after_forward=None` means True for children, False for the
root). Experts on an expert-parallel axis are either plain local tensors in `ignored_params`, or DTensors cut again by
`fully_shard` on the remaining data-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any

from simcore.frameworks.common import llmfoundry as _llmfoundry
from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.checkpoint_files import fsdp2_files
from simcore.frameworks.common.kernels import torch_libraries
from simcore.frameworks.common.liger import loss_with
from simcore.frameworks.common.pipeline import check_schedule, pipeline_schedule
from simcore.frameworks.common.qlora import STORAGE_OPTION, is_packed, packed_of
from simcore.frameworks.common.torch import (
    Defaults,
    Sourced,
    States,
    all_or_no_checkpoint,
    check_named_adapters,
    offloaded_together,
    refuse_virtual_stages,
    states_of,
    torch_optimizer,
)
from simcore.frameworks.fsdp2 import hub as _hub
from simcore.frameworks.fsdp2 import kempnerforge as _kempnerforge
from simcore.frameworks.fsdp2 import torchtitan as _torchtitan
from simcore.frameworks.fsdp2.strategy import Fsdp2Strategy
from simcore.frameworks.fsdp2.units import Wrapping, units
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Framework, Matches, Optimizer, Rule, TensorPolicy, Unit, UpdateTime
from simcore.placement.job import Job
from simcore.placement.layout import Partial, Placements, Shard, TensorLayout
from simcore.recording.packed_weights import PackedWeights

__all__ = ["CODES", "VERSIONS", "in_fp8", "table"]

VERSIONS = ("torch 2.13",)
CODES: dict[str, ModuleType] = {"hf": _transformers, "hub": _hub, "torchtitan": _torchtitan,
                                "kempnerforge": _kempnerforge, "llmfoundry": _llmfoundry}
"""What the trainer of each implementation sets, refuses and cuts."""
RULE = "torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_init.py"


def in_fp8(job: Job) -> ModelGraph:
    """The job's model where linears compute in fp8."""
    code = CODES[job.graph.implementation]
    if not hasattr(code, "in_fp8"):
        raise job.not_yet("training.precision.compute", f"compute in fp8 in the layers of {job.graph.implementation}, "
                          "by torchao's Float8Linear (tensorwise) or by a recipe of TransformerEngine")
    graph: ModelGraph = code.in_fp8(job)
    return graph


def table(job: Job) -> Framework:
    """FSDP2 applied to a job."""
    code = CODES[job.graph.implementation]
    _check(job)
    options, precision, given = job.options(code.OPTIONS), job.scenario.training.precision, code.DEFAULTS
    code.check(job, options)
    stored = job.auto("training.precision.params", precision.params, *_typed(job, given.stored))
    reduce = job.auto("training.precision.grad_reduce", precision.grad_reduce, *_typed(job, given.reduce))
    _note_defaults(job, options)
    _check_last_backward(job, options)
    stages = code.stages_of(job)
    packed = _packed(job, options)
    fully = job.mesh.ep > 1 and options.get("experts", "fully_shard") == "fully_shard"
    _check_shared(job, separate=options.get("wrap", given.wrap) != "layers_root")
    optimizer = _grouped(job, torch_optimizer(job, *reversed(given.optimizer), muon=code is _transformers),
                         mixes=job.mesh.ep > 1 and not fully and stored == job.compute)
    made = units(job.graph, stages, _wrapping(job, options, reduce, packed, fully=fully))
    _check_units(job, made)
    return Framework(
        name="fsdp2", version=VERSIONS[0],
        rules=_rules(job, stored, packed, fully=fully, in_backward=options.get("optimizer_in_bwd", False)),
        units=made,
        strategy=_strategy(job, options, given),
        optimizer=optimizer,
        compute_dtype=job.compute,
        checkpoint=code.checkpoint(job),
        loss=job.auto("training.loss", job.scenario.training.loss, *loss_with(options, given.loss)),
        sequence_parallel=job.mesh.tp > 1 and not (job.mesh.pp > 1 and given.whole_in_stages),
        stages=stages,
        schedule=pipeline_schedule(job),
        buffered_microbatches=job.scenario.num_microbatches if job.mesh.pp > 1 else 0,
        returns_outputs=job.mesh.pp > 1 and bool(options.get("return_outputs", given.returns_outputs)),
        options=(*code.options_of(job, options), *_cast_stream(job)),
        communicators=_communicators(job, made, fully=fully),
        files=fsdp2_files(job),
        libraries=torch_libraries(job, options),
        assumptions=(*_of_host(job), *_of_muon(job), *_of_groups(optimizer),
                     *(_kempnerforge.assumptions(job, options) if code is _kempnerforge else ())),
    )


def _strategy(job: Job, options: dict[str, Any], given: Defaults) -> Fsdp2Strategy:
    """[Note: FSDP2 under pipeline stages] A stage keeps its parameters whole, and reduces when the last pass is over.

    torch 2.13 `distributed/pipelining/stage.py`, backward_maybe_with_nosync: no backward pass reshards or reduces;
    perform_reduce_grad does, unit by unit.
    """
    prefetch = options.get("prefetch") or 0
    if job.mesh.pp > 1:
        job.refuse_idle(options, "set_is_last_backward", "beside pipeline stages, which call it themselves")
        return Fsdp2Strategy(prefetch, prefetch, "end", reshard_after_backward=False)
    return Fsdp2Strategy(prefetch, prefetch, options.get("sync_gradients", given.sync),
                       finish=options.get("set_is_last_backward", "every"))


def _of_host(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """How copies and a step on the host are timed."""
    if not any(job.scenario.training.offload.part(name)[1] for name in ("params", "activations")):
        return ()
    return (("time of offload", "copies at the pace of pinned memory, beside kernels but for inputs of replayed "
             "layers; the CPU's step at 0.7 of its memory bandwidth", "assumed",
             "torch 2.13 distributed/fsdp/_fully_shard; optim/adam.py; no time is published"),)


def _of_muon(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Which tensors it updates, and what is not in traffic."""
    if job.scenario.training.optimizer.name != "muon":
        return ()
    return (("training.optimizer.name", "muon for matrices of hidden layers, adamw for all else", "assumed",
             "torch 2.13 optim/_muon.py; what its products gather or reduce of DTensors is in no traffic"),)


def _grouped(job: Job, optimizer: Optimizer, *, mixes: bool) -> Optimizer:
    """[Note: plain slices beside shards] Where `mixes`, slices of experts are stored in the type of the shards.

    foreach and fused kernels take the parameters of a group that are of one type together (torch 2.13
    `optim/optimizer.py`, _group_tensors_by_device_and_dtype), and DTensor takes no plain tensor beside its own
    (`distributed/tensor/_dispatch.py`: "got mixed torch.Tensor and DTensor"): one parameter group of all parameters
    raises in the first step, in a group of their own the slices do not. A loop over parameters takes either.
    """
    training, options = job.scenario.training, job.scenario.framework_options
    one_by_one = training.optimizer.implementation == "for_loop" or options.get("optimizer_in_bwd")
    together = optimizer.implementation in ("foreach", "fused") and not one_by_one
    return replace(optimizer, groups_apart=mixes and together and training.method == "full")


def _of_groups(optimizer: Optimizer) -> tuple[tuple[str, str, str, str], ...]:
    """Of whom [Note: plain slices beside shards] is true."""
    return (("training.optimizer", "two parameter groups: the experts' slices, and shards", "assumed",
             "torch 2.13 distributed/tensor/_dispatch.py: one group of both, in one type, raises \"got mixed "
             "torch.Tensor and DTensor\" in the first step"),) * optimizer.groups_apart


def _typed(job: Job, default: Sourced) -> Sourced:
    value, source = default
    return job.compute if value == "compute" else value, source


def _cast_stream(job: Job) -> tuple[tuple[str, str], ...]:
    """Inputs of each unit are cast to the compute dtype (torch 2.13 `_fsdp_state.py`, cast_forward_inputs)."""
    return (("stream", "cast"),) if any(kind.wide for kind in job.graph.kinds) else ()


def _note_defaults(job: Job, options: dict[str, object]) -> None:
    """What is decided tensor by tensor or unit by unit further down."""
    if options.get("reshard_after_forward") is None:
        given = CODES[job.graph.implementation].DEFAULTS
        job.auto("framework_options.reshard_after_forward", "auto",
                 *(given.reshard if job.mesh.pp == 1 else given.reshard_in_stages))
    if job.scenario.training.optimizer.name != "sgd":
        job.auto("training.optimizer.moments", job.scenario.training.optimizer.moments, "as each parameter is stored",
                 "torch 2.13 optim/adam.py: zeros_like(parameter)")


def _check(job: Job) -> None:
    mesh, training = job.mesh, job.scenario.training
    axes = CODES[job.graph.implementation].DEFAULTS.axes
    if mesh.pp > 1 and "pp" not in axes:
        raise job.not_yet("mesh.pp", "fsdp2 with pipeline stages (torch.distributed.pipelining)")
    if mesh.cp > 1 and "cp" not in axes:
        raise job.not_yet("mesh.cp", "fsdp2 with context parallelism")
    if mesh.etp > 1:
        raise job.not_yet("mesh.etp", "fsdp2 with experts split by width")
    if mesh.stage_size % mesh.ep:
        raise job.illegal("mesh.ep", f"{mesh.stage_size} ranks must be a multiple of ep {mesh.ep}",
                          "torch 2.13 init_device_mesh: the mesh must cover the ranks")
    _check_offload(job)
    job.refuse_given({"training.sequence_parallel": "False", "training.precision.main_grads": "auto",
                      "training.precision.experts": "auto", "training.optimizer.master": "none",
                      "training.pipeline.layers": "auto"})
    check_schedule(job, splits="split_backward" in axes)
    if mesh.pp == 1 or "virtual_stages" not in axes:
        refuse_virtual_stages(job)
    if training.method != "full":
        job.one_of("training.optimizer.name", training.optimizer.name, ("adamw", "adam", "sgd"))
        check_named_adapters(job)
    _check_experts(job)


def _check_offload(job: Job) -> None:
    """[Note: FSDP2 on the host] Parameters, gradients and states go together, all of them."""
    waits = ("activations",) if job.graph.implementation == "hf" else ()
    job.refuse_offload("params", "gradients", "optimizer", *waits)
    away = offloaded_together(job, "CPUOffloadPolicy offloads parameters, gradients, and optimizer states to CPU",
                              "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_api.py")
    if away and job.mesh.dp_shard == 1:
        raise job.not_yet("training.offload", "parameters on the host that are not sharded")


def _check_experts(job: Job) -> None:
    if job.mesh.ep > 1 and not job.has_experts:
        raise job.illegal("mesh.ep", f"ep {job.mesh.ep} on a model without experts: there is nothing to place on it",
                          "expert parallel: DTensor Shard(0) of the experts")
    for kind in job.graph.kinds:
        for branch in kind.branches:
            if isinstance(branch.block, Moe) and branch.block.num_experts % job.mesh.ep:
                raise job.illegal("mesh.ep", f"{branch.block.num_experts} experts must be divisible by ep "
                                  f"{job.mesh.ep}", "expert parallel: DTensor Shard(0) of the experts, even cut")


def _check_shared(job: Job, *, separate: bool) -> None:
    """A parameter of two units raises before the first forward. `separate`: embedding and head are units."""
    for layer in job.graph.layers:
        name = next((spec.name for spec in job.graph.tensors[layer.kind] if spec.tied), "")
        in_block = job.graph.kinds[layer.kind].block is None
        if name and (separate or in_block):
            hint = "every layer is a unit" if in_block else "with a tied head only wrap: layers_root runs"
            raise job.illegal("model" if in_block else "framework_options.wrap", f"Parameter '{layer.path}.{name}' is "
                              f"shared with a parameter already managed by another FSDP group: {hint}",
                              f"{RULE.replace('_init', '_state')} _validate_no_duplicate_params")


def _check_units(job: Job, made: tuple[Unit, ...]) -> None:
    """DTensors, which experts of `fully_shard` are, are kept in no group that is smaller than theirs."""
    kept = next((unit for unit in made if unit.inner and unit.kept_axis != unit.shard_axis), None)
    if kept is not None:
        raise job.illegal("framework_options.reshard_after_forward", "Resharding to smaller mesh is not supported for "
                          f"DTensor parameters yet: {job.mesh.expert_dp} ranks share experts, the group is of "
                          f"{kept.reshard_after_forward}", f"{RULE.replace('_init', '_param')} to_sharded_post_forward")


def _check_last_backward(job: Job, options: dict[str, Any]) -> None:
    """A unit whose output carries no gradient is gathered ahead in backward, and nobody waits for it.

    `set_is_last_backward(False)` leaves that to the next forward: of a unit that a smaller group keeps it is too short.
    """
    asked, shards = options.get("reshard_after_forward"), job.mesh.axis("dp_shard_cp").size
    small = type(asked) is int and 1 < asked < shards
    if not small or options.get("set_is_last_backward") != "last" or job.scenario.num_microbatches == 1:
        return
    graph = job.graph
    trained = next(layer.index for layer in graph.layers if any(t.trainable and not t.is_buffer
                                                                for t in graph.tensors[layer.kind]))
    block = next(layer.index for layer in graph.layers if graph.kinds[layer.kind].block is None)
    first = 0 if options.get("wrap") == "separate_embedding_head" else block
    if trained > first and options.get("recompute_by") != "transformers":
        raise job.illegal("framework_options.set_is_last_backward", "split_with_sizes expects split_sizes to sum "
                          f"exactly to the whole: a unit below what is trained, kept by {asked} of {shards} ranks, is "
                          "still being gathered when the next forward begins",
                          "torch 2.13 _fsdp_param_group.py wait_for_unshard")


def _reshard_policy(job: Job, reshard: object, shards: int) -> bool | int:
    """A group of 1 means False, of all shards True (torch 2.13 `_fsdp_init.py`, `_get_post_forward_mesh_info`)."""
    assert isinstance(reshard, (bool, int))
    if isinstance(reshard, bool) or reshard == 1:
        return reshard is True
    if reshard < 1 or shards % reshard:
        raise job.illegal("framework_options.reshard_after_forward", "if passing reshard_after_forward as an int, it "
                          f"should be a factor of {shards}, not {reshard}", f"{RULE} _get_post_forward_mesh_info")
    return True if reshard == shards else reshard


@dataclass(frozen=True, slots=True)
class _Choice:
    """What lives depend on besides the tensor. `kept`: what the optimizer keeps.

    `on_host`: sharded tensors rest there; `pin_memory` is the policy's default, states are not pinned.
    `in_backward`: [Note: optimizer in backward] in `simcore/placement/optimizer_step.py`.
    """

    stored: str
    compute: str
    weights: str
    adapters: str
    kept: States
    splits_experts: bool
    fully: bool
    on_host: bool
    in_backward: bool
    packed: PackedWeights | None


def _packed(job: Job, options: dict[str, Any]) -> PackedWeights | None:
    """[Note: FSDP2 and weights in 4 bits] Columns of bytes are whole on every rank, others are cut.

    accelerate 1.15 `utils/fsdp_utils.py:797` has FSDP ignore uint8. A column of a floating type is gathered like other
    parameters, so it must have the products' own: torch 2.13 `_fsdp_param.py`, init_dtype_attrs, casts any other.
    Constants are no parameters: every rank has all of them.
    """
    if job.graph.implementation != "hf":
        if job.scenario.training.method == "qlora":
            raise job.not_yet("training.method", f"qlora with the layers of {job.graph.implementation}")
        return None
    packed = packed_of(job, options)
    if packed and not packed.is_tensor and packed.storage not in ("uint8", job.compute):
        raise job.illegal(f"framework_options.{STORAGE_OPTION}", f"packed values in {packed.storage} would be cast to "
                          f"{job.compute}", "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py init_dtype_attrs")
    return packed


def _rules(job: Job, stored: str, packed: PackedWeights | None, *, fully: bool, in_backward: bool) -> tuple[Rule, ...]:
    adapter = job.scenario.training.lora.dtype
    choice = _Choice(stored, job.compute, _gathered_weights(job), stored if adapter == "auto" else adapter,
                     states_of(job), job.mesh.ep > 1, fully,
                     job.scenario.training.offload.part("params")[1] > 0, in_backward, packed)
    code = job.graph.implementation
    whole = CODES[code].DEFAULTS.whole_in_stages if job.mesh.pp > 1 else ()
    return _made_rules(choice, _tp_cuts(job.graph) if job.mesh.tp > 1 else (), code, whole)


@lru_cache(maxsize=256)
def _made_rules(choice: _Choice, tp_cuts: tuple[Placements, ...], code: str, whole: tuple[str, ...]) -> tuple[Rule,
                                                                                                              ...]:
    """FSDP2 cuts on dimension 0 what tensor parallelism has left (torch 2.13 `_fsdp_param.py`, strided shards).

    `whole`: components that it leaves whole.
    """
    dense: Placements = (("dp_shard_cp", Shard(0)),)
    stored = choice.stored
    buffer = replace(_policy("buffer", (), "fp32", replace(choice, compute="fp32", on_host=False)), pad_storage=False)
    rules = [Rule(lambda t: t.is_buffer, buffer)]
    if choice.splits_experts:
        split: Placements = (("ep", Shard(0, even=True)),)
        experts = (_policy("experts, sharded", (*split, ("expert_dp", Shard(0))), stored, choice, used=split)
                   if choice.fully else _plain_experts(split, choice))
        rules.append(Rule(lambda t: t.component == "routed_experts", experts))
    rules.append(Rule(lambda t: t.module == "adapter", _policy("adapters", dense, choice.adapters, choice)))
    if choice.packed is not None:
        rules.append(Rule(is_packed, _packed_policy(dense, choice.packed, choice)))
    rules.append(Rule(lambda t: t.component in whole, _policy("sharded", dense, stored, choice)))
    if choice.weights != choice.compute:
        rules += [Rule(_narrow(code, cut), _policy("sharded, fp8", (*cut, *dense), stored, choice, used=cut,
                                                 in_use=choice.weights)) for cut in (*tp_cuts, ())]
    rules += [Rule(_lies_like(code, cut), _policy("sharded, tp", (*cut, *dense), stored, choice, used=cut))
              for cut in tp_cuts]
    if choice.kept.name == "muon":
        rules.append(Rule(_is_hidden_matrix, _policy("sharded, muon", dense, stored, choice, hidden=True)))
    rules.append(Rule(lambda t: True, _policy("sharded", dense, stored, choice)))
    return tuple(rules)


def _gathered_weights(job: Job) -> str:
    """In use, linears of blocks are of this type."""
    return _torchtitan.gathered_weights(job) if CODES[job.graph.implementation] is _torchtitan else job.compute


def _narrow(code: str, cut: Placements) -> Matches:
    """A linear of a block that torchao converts, cut so; torchtitan's filter leaves the output alone."""
    return lambda spec: (spec.module == "linear" and spec.component != "lm_head"
                         and (not cut or CODES[code].tp_layout(spec) == cut))


def _is_hidden_matrix(spec: TensorSpec) -> bool:
    """Muon is for matrices of hidden layers; embedding and head are AdamW's (torch 2.13 `optim/_muon.py`)."""
    return len(spec.shape) == 2 and spec.copies == 1 and spec.component not in ("embedding", "lm_head")


@lru_cache(maxsize=64)
def _tp_cuts(graph: ModelGraph) -> tuple[Placements, ...]:
    """Every way in which tensor parallelism cuts a tensor of the model."""
    tp_layout = CODES[graph.implementation].tp_layout
    cuts = (tp_layout(spec) for specs in graph.tensors for spec in specs)
    return tuple(dict.fromkeys(cut for cut in cuts if cut))


def _lies_like(code: str, cut: Placements) -> Matches:
    return lambda spec: CODES[code].tp_layout(spec) == cut


def _policy(name: str, placements: Placements, stored: str, choice: _Choice, used: Placements = (), *,
          hidden: bool = False, in_use: str = "") -> TensorPolicy:
    partial: Placements = (("dp_shard_cp", Partial()),)
    rest = TensorLayout(placements, stored, "host_pinned" if choice.on_host else "device")
    states = choice.kept.of(placements, stored, "host" if choice.on_host else "device", hidden=hidden)
    return TensorPolicy(name, rest, TensorLayout(used, in_use or choice.compute),
                        TensorLayout((*used, *partial), choice.compute), rest, states,
                UpdateTime.AFTER_REDUCE if choice.in_backward else UpdateTime.OPTIMIZER_STEP, pad_storage=True)


def _packed_policy(placements: Placements, packed: PackedWeights, choice: _Choice) -> TensorPolicy:
    """A column of bytes is whole on every rank, one of another type is cut."""
    policy = _policy("sharded, packed", placements, choice.stored, choice)
    if packed.storage != "uint8" or packed.is_tensor:
        return replace(policy, at_rest=TensorLayout(placements, packed.storage, policy.at_rest.space, packed=packed))
    return replace(policy, name="packed, ignored", at_rest=TensorLayout((), packed.storage, packed=packed),
                   pad_storage=False, at_rest_category="ignored_param")


def _plain_experts(split: Placements, choice: _Choice) -> TensorPolicy:
    """Local slices outside FSDP: mixed precision does not reach them, nothing reduces their gradients."""
    layout = TensorLayout(split, choice.compute)
    return TensorPolicy("experts, ignored", layout, layout, layout, layout, choice.kept.of(split, choice.compute),
                updated=UpdateTime.GRADIENT_READY if choice.in_backward else UpdateTime.OPTIMIZER_STEP,
                at_rest_category="ignored_param", unreduced_grad_category="ignored_grad")


def _wrapping(job: Job, options: dict[str, Any], reduce: str, packed: PackedWeights | None, *, fully: bool) -> Wrapping:
    """By default children reshard; whether the root does its code says (torch 2.13 left alone: it does not).

    `set_reshard_after_forward` of the last layer is of all units inside it too (`_fully_shard.py`, recurse).
    """
    mesh, asked = job.mesh, options.get("reshard_after_forward")
    given: Defaults = CODES[job.graph.implementation].DEFAULTS
    shards, last = mesh.axis("dp_shard_cp").size, options.get("set_last_reshard")
    in_stages = mesh.pp > 1
    children = (not in_stages or given.reshard_in_stages[0].startswith("true")) if asked is None else asked
    return Wrapping(
        root=_reshard_policy(job, given.root_resharded if asked is None else asked, shards),
        layers=_reshard_policy(job, children, shards),
        last=_reshard_policy(job, children if last is None else last, shards),
        head=given.last_follows and asked is True,
        experts=_reshard_policy(job, children, mesh.expert_dp) if fully else True,
        last_experts=_reshard_policy(job, children if last is None else last, mesh.expert_dp) if fully else True,
        separate=options.get("wrap", given.wrap) != "layers_root",
        loss_inside=given.loss_inside,
        experts_unit=fully,
        experts_apart=mesh.ep > 1,
        packed_apart=packed is not None and packed.storage == "uint8" and not packed.is_tensor,
        replicates=mesh.dp_replicate > 1,
        checkpointed=fully and all_or_no_checkpoint(job) != "none",
        compute=job.compute,
        reduce=reduce,
        joins_copies=bool(options.get("packed_experts")))


def _communicators(job: Job, made: tuple[Unit, ...], *, fully: bool) -> tuple[str, ...]:
    """Axes of more than one rank, those of smaller groups too (torch 2.13 `_get_post_forward_mesh_info`)."""
    mesh = job.mesh
    sizes = {"tp": mesh.tp, "dp_shard_cp": mesh.dp_shard * mesh.cp, "dp_replicate": mesh.dp_replicate, "ep": mesh.ep,
             "cp": mesh.cp, "pp": mesh.pp, "expert_dp": mesh.expert_dp if fully else 1}
    smaller = (unit.kept_axis for unit in made if unit.kept_axis != unit.shard_axis)
    return tuple(dict.fromkeys((*(name for name, size in sizes.items() if size > 1), *smaller)))
