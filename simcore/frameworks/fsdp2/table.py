"""Plain PyTorch FSDP2 (`fully_shard`) and HSDP, torch 2.13, around Hugging Face models.

Rules: `torch/distributed/fsdp/_fully_shard/` (one `fully_shard` call is one unit; every parameter is cut on dimension 0
in `ceil(d0 / W)` rows and its storage is padded; `reshard_after_forward=None` means True for children, False for the
root). Experts on an expert-parallel axis are either plain local tensors in `ignored_params`, or DTensors cut again by
`fully_shard` on the remaining data-parallel ranks.
"""

from __future__ import annotations

from dataclasses import replace

from simcore.frameworks.common.afterwards import trainer_afterwards
from simcore.frameworks.common.checkpoint_files import fsdp2_files
from simcore.frameworks.common.hot_ranks import fullest_load
from simcore.frameworks.common.kernels import torch_libraries
from simcore.frameworks.common.liger import loss_with
from simcore.frameworks.common.low_rank.refusals import OF_DTENSORS
from simcore.frameworks.common.pipeline import pipeline_schedule
from simcore.frameworks.common.torch import Sourced, time_of_offload, torch_optimizer
from simcore.frameworks.common.trainer import Trainer
from simcore.frameworks.common.transformers import stored_as
from simcore.frameworks.fsdp2.checks import (
    FRONT,
    check,
    check_last_backward,
    check_resting,
    check_shared,
    check_units,
    is_separate,
)
from simcore.frameworks.fsdp2.options import strategy, wrapping
from simcore.frameworks.fsdp2.pairs.rules import check_pairs, reads_head_apart
from simcore.frameworks.fsdp2.rules import packed_weights, rules_of
from simcore.frameworks.fsdp2.split.matrices import ties_again
from simcore.frameworks.fsdp2.split.rings import ringed
from simcore.frameworks.fsdp2.trainers import TRAINERS
from simcore.frameworks.fsdp2.units import units
from simcore.inputs.optimizers import AS_STORED, OPTIMIZERS
from simcore.models.graph import ModelGraph
from simcore.operators.hf.families import has_wide_inputs
from simcore.operators.hf.options import HfOptions
from simcore.placement.framework import Framework, Optimizer, Unit
from simcore.placement.job import Draft, Job
from simcore.recording.layer import KEPT
from simcore.recording.options import ImplementationOptions

__all__ = ["VERSIONS", "in_fp8", "table"]

VERSIONS = ("torch 2.13",)


def in_fp8(job: Draft) -> ModelGraph:
    """Returns the job's model with linears that compute in fp8; NotYet if its layers are not served so."""
    trainer = TRAINERS[job.graph.implementation]
    if trainer.in_fp8 is None:
        raise job.not_yet("training.precision.compute", f"compute in fp8 in the layers of {job.graph.implementation}, "
                          "by torchao's Float8Linear (tensorwise) or by a recipe of TransformerEngine")
    return trainer.in_fp8(job)


def table(job: Draft) -> Framework:
    """Returns FSDP2's table for a job; IllegalLayout, InputError or NotYet for one that is not served."""
    trainer = TRAINERS[job.graph.implementation]
    check(job)
    options, precision, given = job.options(trainer.options), job.scenario.training.precision, trainer.defaults
    check_pairs(job, options)
    check_resting(job, options)
    trainer.check(job, options)
    stored = job.auto("training.precision.params", precision.params, *stored_as(job, _typed(job, given.stored)))
    reduce = job.auto("training.precision.grad_reduce", precision.grad_reduce, *_typed(job, given.reduce))
    _note_defaults(job, options)
    check_last_backward(job, options)
    stages = trainer.stages(job)
    packed = packed_weights(job, options)
    fully = job.mesh.ep > 1 and options.get("experts") != "ignored"
    check_shared(job, separate=is_separate(job, options) or options.get("wrap") == FRONT)
    optimizer = _optimizer(job, trainer, mixes=job.mesh.ep > 1 and not fully and stored == job.compute)
    made = units(job.graph, stages, wrapping(job, options, reduce, packed, fully=fully))
    check_units(job, made)
    return Framework(
        name="fsdp2", version=VERSIONS[0],
        rules=rules_of(job, stored, packed, fully=fully, in_backward=options.get("optimizer_in_bwd", False)),
        units=made,
        strategy=strategy(job, options, given),
        optimizer=optimizer, compute_dtype=job.compute,
        checkpoint=trainer.checkpoint(job), kept_whole=trainer.kept_whole(job, stages),
        loss=job.auto("training.loss", job.scenario.training.loss, *loss_with(options, given.loss)),
        sequence_parallel=job.mesh.tp > 1 and given.splits_stream and not (job.mesh.pp > 1 and given.whole_in_stages),
        stages=stages,
        schedule=pipeline_schedule(job),
        buffered_microbatches=job.scenario.num_microbatches if job.mesh.pp > 1 else 0,
        returns_outputs=job.mesh.pp > 1 and bool(options.get("return_outputs", given.returns_outputs)),
        options=_cast_stream(job, trainer.layer_options(job, options)),
        communicators=_communicators(job, made, fully=fully),
        files=fsdp2_files(job, trainer.files), fullest_load=fullest_load(job) if trainer.hot_ranks else 1.0,
        afterwards=trainer_afterwards(job, trainer.kept_logits(job, stored), whole=False, loop=trainer.evaluation,
                                       writes=trainer.hub_files),
        libraries=replace(torch_libraries(job, options), logged=trainer.logged),
        assumptions=(*time_of_offload(job), *_of_muon(job), *_of_groups(optimizer), *trainer.assumptions(job, options)),
    )


def _of_muon(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumption about Muon: the tensors that it updates, and the traffic that is not counted."""
    name = job.scenario.training.optimizer.name
    if not OPTIMIZERS[name].matrix_states:
        return ()
    return (("training.optimizer.name", f"{name} for matrices of hidden layers, adamw for all else", "assumed",
             "torch 2.13 optim/_muon.py; what its products gather or reduce of DTensors is in no traffic"),)


def _optimizer(job: Draft, trainer: Trainer, *, mixes: bool) -> Optimizer:
    """Optimizer of the job over DTensors.

    [Note: plain slices beside shards] Where `mixes`, slices of experts are stored in the type of the shards.

    foreach and fused kernels take the parameters of a group that are of one type together (torch 2.13
    `optim/optimizer.py`, _group_tensors_by_device_and_dtype), and DTensor takes no plain tensor beside its own
    (`distributed/tensor/_dispatch.py`: "got mixed torch.Tensor and DTensor"): one parameter group of all parameters
    raises in the first step, in a group of their own the slices do not. A loop over parameters takes either.
    """
    optimizer = torch_optimizer(job, *reversed(trainer.defaults.optimizer), by_matrix=trainer.serves_muon,
                                low_rank=OF_DTENSORS)
    training, options = job.scenario.training, job.scenario.framework_options
    one_by_one = training.optimizer.implementation == "for_loop" or options.get("optimizer_in_bwd")
    together = optimizer.implementation in ("foreach", "fused") and not one_by_one
    return replace(optimizer, groups_apart=mixes and together and training.method == "full")


def _of_groups(optimizer: Optimizer) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumption of two parameter groups, if [Note: plain slices beside shards] applies."""
    return (("training.optimizer", "two parameter groups: the experts' slices, and shards", "assumed",
             "torch 2.13 distributed/tensor/_dispatch.py: one group of both, in one type, raises \"got mixed "
             "torch.Tensor and DTensor\" in the first step"),) * optimizer.groups_apart


def _typed(job: Job, default: Sourced) -> Sourced:
    value, source = default
    return job.compute if value == "compute" else value, source


def _cast_stream(job: Draft, options: ImplementationOptions) -> ImplementationOptions:
    """Inputs of each unit are cast to the compute dtype (torch 2.13 `_fsdp_state.py`, cast_forward_inputs)."""
    if not isinstance(options, HfOptions):  # others refuse residuals in fp32
        return options
    apart = job.mesh.axis("dp_shard_cp").size if reads_head_apart(job, job.scenario.framework_options) else 0
    return replace(ringed(job, options), head_parts=apart, casts_stream=any(map(has_wide_inputs, job.graph.kinds)),
                   casts_tower=job.graph.architecture.has_tower, wide_logits=job.scenario.training.loss in KEPT)


def _note_defaults(job: Draft, options: dict[str, object]) -> None:
    """Notes the defaults of settings that are chosen tensor by tensor or unit by unit."""
    if options.get("set_is_last_backward") == "last" and job.scenario.training.method != "full":
        job.note("framework_options.set_is_last_backward", "last", "torch 2.13 _fsdp_state.py: what waits for the last "
                 "backward pass are gradients of adapters, below the peak")
    if options.get("reshard_after_forward") is None:
        given = TRAINERS[job.graph.implementation].defaults
        job.auto("framework_options.reshard_after_forward", "auto",
                 *(given.reshard if job.mesh.pp == 1 else given.reshard_in_stages))
    if "wrap" not in options and ties_again(job):
        job.auto("framework_options.wrap", "auto", "separate_embedding_head", "transformers 5.23 distributed/fsdp.py "
                 "_resolve_tied_embed_lm_head_plan: embedding and last norm are a unit, the tied head is the root's")
    if OPTIMIZERS[job.scenario.training.optimizer.name].states:
        job.auto("training.optimizer.moments", job.scenario.training.optimizer.moments, AS_STORED,
                 "torch 2.13 optim/adam.py: zeros_like(parameter)")


def _communicators(job: Job, made: tuple[Unit, ...], *, fully: bool) -> tuple[str, ...]:
    """Axes of more than one rank, those of smaller groups too (torch 2.13 `_get_post_forward_mesh_info`)."""
    mesh = job.mesh
    sizes = {"tp": mesh.tp, "dp_shard_cp": mesh.dp_shard * mesh.cp, "dp_replicate": mesh.dp_replicate, "ep": mesh.ep,
             "cp": mesh.cp, "pp": mesh.pp}
    if fully:
        sizes |= {axis: mesh.axis(axis).size for axis in TRAINERS[job.graph.implementation].experts_axes(job) if axis}
    smaller = (unit.kept_axis for unit in made if unit.kept_axis != unit.shard_axis)
    return tuple(dict.fromkeys((*(name for name, size in sizes.items() if size > 1), *smaller)))
