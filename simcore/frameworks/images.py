"""Models that read images: what a scenario says of them, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcore.errors import InputError, Problem
from simcore.frameworks.adapter import FrameworkAdapter
from simcore.inputs.scenario import Scenario
from simcore.models.vision.around import IMAGE_SIDES
from simcore.models.vision_blocks import Projector, RowProjector, TowerEnd, VisionPart, sizes_vary
from simcore.placement.job import Job

__all__ = ["check_images", "with_image_sides"]

_AT = "training.images"


def check_images(job: Job, adapter: FrameworkAdapter) -> None:
    """Raises InputError for images that do not fit the model or its sequences, NotYet for what is not modelled."""
    images = job.scenario.training.images
    where = job.scenario.where("training", "images")
    if not job.graph.architecture.has_tower:
        training = job.scenario.training
        for name in ("images", "image_height", "image_width"):
            if getattr(training, name) is not None:
                raise InputError(Problem(job.scenario.where("training", name), f"{name}: changes nothing: "
                                         f"{job.graph.architecture.family} has no vision tower"))
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


def with_image_sides(fields: Mapping[str, Any], scenario: Scenario) -> Mapping[str, Any]:
    """The configuration `fields` with the sides of the scenario's images, if it gives them."""
    height, width = scenario.training.image_height, scenario.training.image_width
    return fields if height is None else {**fields, IMAGE_SIDES: [height, width or height]}


def _check_sides(job: Job) -> None:
    """Raises InputError unless sides are given just where the model takes images of any size."""
    training, where = job.scenario.training, job.scenario.where
    given = [name for name in ("image_height", "image_width") if getattr(training, name) is not None]
    if any(sizes_vary(kind.block) for kind in job.graph.kinds):
        if training.image_height is None:
            raise InputError(Problem(where("training"), "training.image_height: expected the height of images in "
                                     "pixels: the model takes images of any size, and more patches from larger ones"))
    elif given:
        raise InputError(Problem(where("training", given[0]), f"{given[0]}: changes nothing: all images of "
                                 f"{job.graph.architecture.family} have one size"))


def _refuse(job: Job, adapter: FrameworkAdapter) -> None:
    scenario, training = job.scenario, job.scenario.training
    if not adapter.reads_images:
        raise job.not_yet("model", f"a vision tower under {scenario.framework} (served: automodel, megatron)")
    if scenario.workload != "train":
        raise job.not_yet("workload", f"a vision tower in {scenario.workload}")
    if training.method == "qlora":
        raise job.not_yet("training.method", "qlora of a model with a vision tower")
    if adapter.trains_towers:
        return
    if any("language" in name for name in (*training.lora.target_modules, *training.lora.exclude_modules)):
        raise job.not_yet("training.lora", "patterns of adapters that tell the language model from the tower")
    if training.recompute != "none" and job.graph.implementation == "hf":
        raise job.not_yet("training.recompute", "activation checkpointing of a model with a vision tower")
    if training.lengths != "fixed":
        raise job.not_yet("training.lengths", "sequences with images that are not all of one length")
    graph = job.graph
    if any(spec.module == "adapter" for layer in graph.layers for spec in graph.tensors[layer.kind]
           if isinstance(graph.kinds[layer.kind].block, VisionPart)):
        raise job.not_yet("training.lora", "adapters in a vision tower (exclude_modules: ['*vision*'] leaves it out)")
    trained = [layer.path for layer in graph.layers if isinstance(graph.kinds[layer.kind].block, VisionPart)
               and not isinstance(graph.kinds[layer.kind].block, Projector | RowProjector)
               and any(spec.trainable for spec in graph.tensors[layer.kind])]
    if trained:
        raise job.not_yet("training.frozen", f"a vision tower that is trained ({trained[0]} and others; frozen: "
                          "[model.vision_tower] leaves it as it is)")
