"""Refusals of FSDP2 jobs: axes, offload, experts, shared parameters, units.

Rules: torch 2.13 `torch/distributed/fsdp/_fully_shard/`.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.common.pipeline import check_schedule
from simcore.frameworks.common.torch import OF_POLICIES, check_named_adapters, offloaded_together
from simcore.frameworks.fsdp2.split.matrices import has_plan, ties_again
from simcore.frameworks.fsdp2.split.rings import check_context, shares_sequences
from simcore.frameworks.fsdp2.trainers import TRAINERS
from simcore.inputs.optimizers import optimizers_of
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph
from simcore.models.placed_blocks import PlacedPatches
from simcore.models.vision_blocks import VisionPart
from simcore.placement.capabilities import ALL_AXES, PLAIN_TORCH, Capabilities
from simcore.placement.framework import Unit
from simcore.placement.job import Draft, Job
from simcore.recording.layer import FUSED_PAIRS, KEPT_ALONE

__all__ = ["FRONT", "OUTSIDE", "RULE", "TAIL", "TOWER_OPTION", "axes_of", "check", "check_last_backward",
           "check_resting", "check_shared", "check_units", "is_norm_apart", "is_separate"]

_AXES = ("dp_replicate", "dp_shard", "ep")
_STAGES = ("Combining FSDP with pipeline parallelism is not supported yet; without FSDP transformers' stages have no "
           "backward: they return logits and no loss, and what a stage receives has no gradient (torch's own stages: "
           "implementation: torchtitan)", "transformers 5.23 distributed/configuration_utils.py:188, distributed/"
           "pipeline_parallel.py:262 and :283; accelerate 1.15.0 parallelism_config.py has no such axis")
RULE = "torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_init.py"
_LOG_PROBS = "log_probs"
OUTSIDE = (_LOG_PROBS, *KEPT_ALONE, *FUSED_PAIRS, *OF_POLICIES)
"""Losses whose last part the trainer computes from the model's output, when the root has been resharded."""


TAIL = "embedding_tail"
"""Value of `wrap`: accelerate's units from 1.15.0 on, [Note: accelerate's tail]."""
FRONT = "separate_embedding"
"""Value of `wrap`: the embedding is a unit, norm and head are the root's (verl b178a3cd `utils/fsdp_utils.py`)."""


TOWER_OPTION: Final = "wrap_tower"
_RESTING: Final = ("gemma3", "mistral3", "qwen3_5", "qwen3_5_moe")
"""Families whose decoder runs beside a tower at rest as it does in a model of text (`tests/truth/probe_resting.py`)."""
_NOT_FOUND: Final = {"gemma3": "SiglipMultiheadAttentionPoolingHead"}
"""Class of `_no_split_modules` that the model of a family does not have."""
_BESIDE: Final = ("tp", "cp", "ep", "pp")


def is_separate(job: Job, options: dict[str, Any]) -> bool:
    """True if embedding and head are units of their own, not parts of the root unit.

    [Note: accelerate's tail] accelerate 1.15.0 `utils/fsdp_utils.py`, fsdp2_prepare_model: the embedding is a unit, and
    the last norm and the head are one that never reshards; of a model with adapters, or with a vision tower, the norm
    is not found and stays in the root (_find_final_norm looks at the children of the base model). Where the head is
    tied embedding and head are one unit, with the norm, if it is found: a root under another name, which never reshards
    either.
    A tied head that a plan of tensor parallelism cuts has transformers' own units ([Note: tied behind a plan]).
    """
    if "wrap" not in options and ties_again(job):
        return True
    wrap = options.get("wrap", TRAINERS[job.graph.implementation].defaults.wrap)
    return not job.graph.has_tied_head if wrap == TAIL else wrap not in ("layers_root", FRONT)


def is_norm_apart(job: Job) -> bool:
    """True if accelerate does not find the last norm, which then is the root's, see [Note: accelerate's tail]."""
    return job.scenario.training.method != "full" or bool(job.graph.architecture.resting)


def axes_of(graph: ModelGraph) -> tuple[str, ...]:
    """Returns the mesh axes that may have more than one rank with the layers of a model's implementation."""
    own = TRAINERS[graph.implementation].defaults.axes
    if graph.implementation == "hf":
        own = (*own, *("cp",) * shares_sequences(graph), *("tp",) * has_plan(graph))
    return tuple(axis for axis in ALL_AXES if axis in (*_AXES, *own))


def check(job: Draft) -> None:
    """Raises IllegalLayout or NotYet for a job that its implementation's trainer cannot run under `fully_shard`.

    Looks at mesh axes, training settings, offload, pipeline schedule, LoRA and experts; not at `framework_options`.
    """
    mesh, training = job.mesh, job.scenario.training
    axes = TRAINERS[job.graph.implementation].defaults.axes
    waits = ("activations",) if job.graph.implementation == "hf" else ()
    if mesh.pp > 1 and job.graph.implementation == "hf":
        raise job.illegal("mesh.pp", *_STAGES)
    if mesh.cp > 1 and job.graph.implementation == "hf":
        check_context(job, job.scenario.framework_options)
        axes = (*axes, "cp")
    Capabilities(axes=(*_AXES, "tp", *axes),
                 offload=("params", "gradients", "optimizer", *waits), fixed=PLAIN_TORCH,
                 virtual_stages=mesh.pp > 1 and "virtual_stages" in axes).check(job)
    if mesh.stage_size % mesh.ep:
        raise job.illegal("mesh.ep", f"{mesh.stage_size} ranks must be a multiple of ep {mesh.ep}",
                          "torch 2.13 init_device_mesh: the mesh must cover the ranks")
    _check_offload(job)
    check_schedule(job, splits="split_backward" in axes)
    if training.method != "full":
        job.one_of("training.optimizer.name", training.optimizer.name, optimizers_of("torch", by_matrix=False))
        check_named_adapters(job)
    _check_experts(job)
    _check_loss(job)
    _check_tower(job)


def _check_tower(job: Draft) -> None:
    """Raises NotYet or IllegalLayout for a vision tower whose units or hooks are not known.

    accelerate looks for every class of `_no_split_modules`, and Gemma 3's has SigLIP's head, which it leaves out.
    """
    family, options = job.graph.architecture.family, job.scenario.framework_options
    if not job.graph.architecture.has_tower:
        return
    if not any(isinstance(kind.block, PlacedPatches) for kind in job.graph.kinds):
        raise job.not_yet("model", f"the vision tower of {family} under fsdp2 (served: those of Qwen 3 VL and Qwen "
                          "3.5)")
    if any(spec.trainable and not spec.is_buffer for layer in job.graph.layers
           if isinstance(job.graph.kinds[layer.kind].block, VisionPart) for spec in job.graph.tensors[layer.kind]):
        raise job.not_yet("training.frozen", "a vision tower that is trained under fsdp2 (served: ddp, zero0 to zero2)")
    if options.get("wrap") not in (None, "layers_root"):
        raise job.not_yet("framework_options.wrap", f"{options['wrap']} of a model with a vision tower")
    job.note("norms of the vision tower", "in the type of products", "torch 2.13 autocast_mode.cpp: under autocast, as "
             "accelerate has it around the model, LayerNorm puts out fp32 until the layer has returned")


def check_resting(job: Draft, options: dict[str, Any]) -> None:
    """Raises NotYet or IllegalLayout for a tower that is given no images, whose units or layers were not measured.

    `options`: the framework options that the scenario sets, by name. accelerate takes the classes of
    `_no_split_modules`, those of the tower too, unless the classes are named.
    """
    graph = job.graph
    if not graph.architecture.resting:
        if graph.architecture.has_tower and options.get(TOWER_OPTION) == "root":
            raise job.not_yet(f"framework_options.{TOWER_OPTION}", "layers of a vision tower that reads images in the "
                              "root's unit")
        if not graph.architecture.has_tower:
            job.refuse_idle(options, TOWER_OPTION, "in a model without a vision tower")
        return
    family = graph.architecture.family
    if graph.implementation != "hf" or family not in _RESTING:
        raise job.not_yet("training.images", f"a model with a vision tower that is given text alone, of {family} under "
                          f"fsdp2 (served: {', '.join(_RESTING)})")
    for axis in _BESIDE:
        if getattr(job.mesh, axis) > 1:
            raise job.not_yet(f"mesh.{axis}", f"{axis} beside a vision tower that is given text alone under fsdp2")
    training = job.scenario.training
    if options.get("wrap") == TAIL and job.graph.has_tied_head and training.method != "full" and (
            training.recompute == "none"):
        raise job.not_yet("framework_options.wrap", f"{TAIL} with a tied head and adapters, without recompute, beside "
                          "a vision tower that is given text alone: its peak in backward was told too high")
    if options.get(TOWER_OPTION) is None:
        _note_units(job, family)


def _note_units(job: Draft, family: str) -> None:
    if family in _NOT_FOUND:
        raise job.illegal(f"framework_options.{TOWER_OPTION}", f"Could not find the transformer layer class "
                          f"{_NOT_FOUND[family]} in the model: name the decoder's class alone (root)",
                          "accelerate 1.15.0 utils/fsdp_utils.py fsdp2_prepare_auto_wrap_policy, over "
                          "_no_split_modules of transformers 5.23")
    job.auto(f"framework_options.{TOWER_OPTION}", "auto", "layers", "transformers 5.23 _no_split_modules: the classes "
             "of the tower's layers are among them")


def _check_loss(job: Job) -> None:
    """Raises NotYet where the model's own loss, beside a gathered root, may need more than the trainer's.

    The root's hooks are simulated around the head, so that its parameters, 2 bytes x vocabulary x hidden size, are
    missing beside the model's loss; the trainer's needs a tensor more, 4 bytes x vocabulary x tokens.
    """
    training = job.scenario.training
    tokens = training.seq_len * training.micro_batch_size
    hidden = max(kind.hidden for kind in job.graph.kinds)
    if training.loss == _LOG_PROBS and hidden > 2 * tokens:
        raise job.not_yet("training.loss", f"{_LOG_PROBS} of {tokens} tokens, less than half the hidden size {hidden}")


def _check_offload(job: Job) -> None:
    """[Note: FSDP2 on the host] Parameters, gradients and states go together, all of them."""
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


def check_shared(job: Job, *, separate: bool) -> None:
    """Raises IllegalLayout if two units share a parameter, as torch does before the first forward.

    `separate`: embedding and head are units of their own, not parts of the root unit. A plan of tensor parallelism has
    a parameter for each ([Note: tied behind a plan]).
    """
    if ties_again(job):
        return
    for layer in job.graph.layers:
        name = next((spec.name for spec in job.graph.tensors[layer.kind] if spec.tied), "")
        in_block = job.graph.kinds[layer.kind].block is None
        if name and (separate or in_block):
            hint = "every layer is a unit" if in_block else "with a tied head only wrap: layers_root runs"
            raise job.illegal("model" if in_block else "framework_options.wrap", f"Parameter '{layer.path}.{name}' is "
                              f"shared with a parameter already managed by another FSDP group: {hint}",
                              f"{RULE.replace('_init', '_state')} _validate_no_duplicate_params")


def check_units(job: Job, made: tuple[Unit, ...]) -> None:
    """Raises IllegalLayout if a unit of experts is to be kept in a smaller group after forward.

    `made`: the units of all pipeline stages. Under `fully_shard` its parameters are DTensors, for which torch does not
    do that; so are those that tensor parallelism splits, of any unit.
    """
    split = job.mesh.tp > 1
    kept = next((unit for unit in made if (unit.inner or split) and unit.kept_axis != unit.shard_axis), None)
    if kept is not None:
        told = f"tp {job.mesh.tp} splits matrices" if split else f"{job.mesh.expert_dp} ranks share experts"
        raise job.illegal("framework_options.reshard_after_forward", "Resharding to smaller mesh is not supported for "
                          f"DTensor parameters yet: {told}, the group is of {kept.reshard_after_forward}",
                          f"{RULE.replace('_init', '_param')} to_sharded_post_forward")


def check_last_backward(job: Job, options: dict[str, Any]) -> None:
    """Raises IllegalLayout for `set_is_last_backward: last` if a unit before the trained ones is kept cut.

    Such a unit, kept in a smaller group after forward, is gathered ahead in backward and never awaited.
    `set_is_last_backward(False)` leaves that buffer to the next forward, for which it is too short. `options`: the
    framework options that the scenario sets, by name.
    """
    asked, shards = options.get("reshard_after_forward"), job.mesh.axis("dp_shard_cp").size
    small = type(asked) is int and 1 < asked < shards
    if not small or options.get("set_is_last_backward") != "last" or job.scenario.num_microbatches == 1:
        return
    graph = job.graph
    trained = next(layer.index for layer in graph.layers if any(t.trainable and not t.is_buffer
                                                                for t in graph.tensors[layer.kind]))
    block = next(layer.index for layer in graph.layers if graph.kinds[layer.kind].block is None)
    first = 0 if "wrap" in options and (is_separate(job, options) or options["wrap"] == FRONT) else block
    if trained > first and options.get("recompute_by") != "transformers":
        raise job.illegal("framework_options.set_is_last_backward", "split_with_sizes expects split_sizes to sum "
                          f"exactly to the whole: a unit below what is trained, kept by {asked} of {shards} ranks, is "
                          "still being gathered when the next forward begins",
                          "torch 2.13 _fsdp_param_group.py wait_for_unshard")
