"""Models that read images: what a scenario says of them, and what is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.errors import InputError, NotYet, Problem
from simcore.frameworks.adapter import FrameworkAdapter
from simcore.inputs.scenario import Scenario
from simcore.models.config import TEXT_ALONE
from simcore.models.graph import ModelGraph
from simcore.models.names import text_of
from simcore.models.placed_blocks import DeepMerger, MoonEnd, MoonPatches, PlacedPatches
from simcore.models.pooled_blocks import PooledPatches, PooledProjector, PooledStem
from simcore.models.radio_blocks import RadioPatches
from simcore.models.vision.around import IMAGE_SIDES
from simcore.models.vision_blocks import Projector, RowProjector, TowerEnd, VisionPart, sizes_vary
from simcore.placement.job import Job

__all__ = ["check_images", "freezes_tower_alone", "with_image_sides", "with_text_model"]

_AT = "training.images"
_OF_IMAGES: Final = re.compile(r"\b(tower|images)\b")
_BEHIND = Projector | RowProjector | PooledProjector | PooledStem | MoonEnd
_OF_ONE_TRAINER = (MoonPatches, PooledPatches, RadioPatches)
"""Fronts of towers whose parts are recorded as NeMo's frameworks run them: neither under autocast nor replayed."""


def check_images(job: Job, adapter: FrameworkAdapter) -> None:
    """Raises InputError for images that do not fit the model or its sequences, NotYet for what is not modelled."""
    images = job.scenario.training.images
    where = job.scenario.where("training", "images")
    if not job.graph.architecture.has_tower:
        _check_text(job, adapter)
        return
    _refuse(job, adapter)
    if images is None:
        raise InputError(Problem(job.scenario.where("training"), f"{_AT}: expected the number of images in each "
                                 "sequence: the model has a vision tower, which runs on them"))
    _check_sides(job)
    tokens = next(kind.block.tokens for kind in job.graph.kinds if isinstance(kind.block, TowerEnd))
    if images * tokens > job.scenario.training.seq_len:
        raise InputError(Problem(where, f"images: expected at most {job.scenario.training.seq_len // tokens} in a "
                                 f"sequence of {job.scenario.training.seq_len} tokens, each of which has {tokens}, got "
                                 f"{images}"))


def _check_text(job: Job, adapter: FrameworkAdapter) -> None:
    """Raises InputError for what is said of images that are not there, NotYet for a tower that may not rest."""
    scenario, rests = job.scenario, bool(job.graph.architecture.resting)
    if rests and not (adapter.rests_towers and scenario.workload == "train"):
        raise job.not_yet(_AT, f"a model with a vision tower that is given text alone in {scenario.workload} under "
                          f"{scenario.framework} (served: train under automodel, ddp and fsdp2)")
    why = "reads no image" if rests else "has no vision tower"
    for name in (*([] if rests else ["images"]), "image_height", "image_width"):
        if getattr(scenario.training, name) is not None:
            raise InputError(Problem(scenario.where("training", name), f"{name}: changes nothing: "
                                     f"{job.graph.architecture.family} {why}"))


def with_text_model(error: NotYet, job: Job) -> NotYet:
    """The refusal of a job; where it is about images, with the name of the model's text alone if that is built in."""
    name = text_of(job.scenario.model_name) if job.graph.architecture.has_tower else ""
    if not name:
        return error
    further = f"; without images: model: {name}"
    return NotYet(replace(one, message=one.message + further * bool(_OF_IMAGES.search(one.message)))
                  for one in error.problems)


def with_image_sides(fields: Mapping[str, Any], scenario: Scenario) -> Mapping[str, Any]:
    """The configuration `fields` with the sides of the scenario's images, if it gives them, or that there are none."""
    height, width = scenario.training.image_height, scenario.training.image_width
    if scenario.training.images == 0:
        return {**fields, TEXT_ALONE: True}
    return fields if height is None else {**fields, IMAGE_SIDES: [height, width or height]}


def freezes_tower_alone(graph: ModelGraph) -> bool:
    """True if no parameter is frozen but those of a vision tower and its end."""
    outside = (spec for layer in graph.layers if not isinstance(graph.kinds[layer.kind].block, VisionPart)
               for spec in graph.tensors[layer.kind])
    return not any(not spec.trainable and not spec.is_buffer for spec in outside)


def _check_sides(job: Job) -> None:
    """Raises InputError unless sides are given just where the model takes images of any size.

    Where it fills them up to one size, sides tell the tokens; left out, images are square.
    """
    training, where = job.scenario.training, job.scenario.where
    given = [name for name in ("image_height", "image_width") if getattr(training, name) is not None]
    if any(sizes_vary(kind.block) for kind in job.graph.kinds):
        if training.image_height is None:
            raise InputError(Problem(where("training"), "training.image_height: expected the height of images in "
                                     "pixels: the model takes images of any size, and more patches from larger ones"))
    elif given and not any(isinstance(kind.block, PooledPatches) for kind in job.graph.kinds):
        raise InputError(Problem(where("training", given[0]), f"{given[0]}: changes nothing: all images of "
                                 f"{job.graph.architecture.family} have one size"))


def _refuse(job: Job, adapter: FrameworkAdapter) -> None:
    scenario, training = job.scenario, job.scenario.training
    if not adapter.reads_images:
        raise job.not_yet("model", f"a vision tower under {scenario.framework} (served: automodel, ddp, fsdp1, "
                          "fsdp2, megatron, zero0 to zero3)")
    if adapter.replays_towers and any(isinstance(kind.block, _OF_ONE_TRAINER) for kind in job.graph.kinds):
        raise job.not_yet("model", f"the vision tower of {job.graph.architecture.family} under {scenario.framework}")
    if scenario.workload != "train" and not (scenario.workload == "grpo" and (
            adapter.trains_towers or adapter.scores_images)):
        raise job.not_yet("workload", f"a vision tower in {scenario.workload} under {scenario.framework}")
    if training.method == "qlora" and not adapter.replays_towers:
        raise job.not_yet("training.method", "qlora of a model with a vision tower")
    if adapter.trains_towers:
        return
    named = () if isinstance(training.lora.target_modules, str) else training.lora.target_modules
    if any("language" in name for name in (*named, *training.lora.exclude_modules)):
        raise job.not_yet("training.lora", "patterns of adapters that tell the language model from the tower")
    if training.lengths != "fixed" and not (adapter.packs_images and training.lengths == "packed"):
        raise job.not_yet("training.lengths", "sequences with images that are not all of one length")
    graph = job.graph
    if any(spec.module == "adapter" for layer in graph.layers for spec in graph.tensors[layer.kind]
           if isinstance(graph.kinds[layer.kind].block, VisionPart) and not isinstance(
               graph.kinds[layer.kind].block, PooledStem)):
        leaves = r"a pattern such as model\.language_model\..*_proj" if adapter.takes_pattern else (
            "exclude_modules: ['*vision*']")
        raise job.not_yet("training.lora", f"adapters in a vision tower ({leaves} leaves it out)")
    trained = [layer.path for layer in graph.layers if isinstance(graph.kinds[layer.kind].block, VisionPart)
               and not isinstance(graph.kinds[layer.kind].block, _BEHIND)
               and any(spec.trainable for spec in graph.tensors[layer.kind])]
    fronts = adapter.trained_fronts or (PlacedPatches,) * adapter.replays_towers
    if trained and not _is_trained_whole(graph, fronts):
        tower = ".".join(trained[0].split(".")[:2])
        raise job.not_yet("training.frozen", f"a vision tower that is trained ({trained[0]} and others; frozen: "
                          f"[{tower}] leaves it as it is)")


def _is_trained_whole(graph: ModelGraph, fronts: tuple[type, ...]) -> bool:
    """True for a tower with patches of the classes `fronts` that is trained as a whole, and feeds no decoder layer."""
    parts = [(graph.kinds[layer.kind].block, graph.tensors[layer.kind]) for layer in graph.layers
             if isinstance(graph.kinds[layer.kind].block, VisionPart)]
    has_kind = any(isinstance(block, fronts) for block, _ in parts) and not any(
        isinstance(block, DeepMerger) for block, _ in parts)
    return has_kind and all(spec.trainable or spec.is_buffer for _, specs in parts for spec in specs)
