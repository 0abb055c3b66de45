"""Models with a vision tower under FSDP1: what is refused, what hooks and views of flat parameters do to a tower.

[Note: views of a flat parameter] torch 2.13 `fsdp/_flat_param.py` _use_unsharded_views: where some parameters of a unit
are frozen and others not (use_orig_params), all are views of one flat parameter that takes a gradient. So patches and
the merger, which are the root's, are differentiated though frozen, and gradients flow through frozen layers between.
`tests/truth/fsdp1/vision-torch-2.13.0.json`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common.liger import LIGER_OPTIONS
from simcore.frameworks.common.transformers import FROZEN_OPTION
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import GridPatches
from simcore.placement.job import Draft, Job
from simcore.recording.options import ImplementationOptions

__all__ = ["FLATTEN", "around_tower", "check_tower", "is_end_of_tower"]

FLATTEN: Final = "torch 2.13 torch/distributed/fsdp/_flat_param.py _validate_tensors_to_flatten"
_PATCHES: Final = "proj.weight"
"""Name of the product of patches in the towers of Qwen 2 VL and Qwen 2.5 VL."""
_MEASURED: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("sharding_strategy", ("FULL_SHARD", "HYBRID_SHARD")), ("backward_prefetch", ("BACKWARD_PRE",)),
    ("forward_prefetch", (False,)), ("wrap", ("layers_root",)), *((name, (False,)) for name in LIGER_OPTIONS),
    ("compile", (False,)),
    ("attn_implementation", ("eager", "sdpa", "flash_attention_2")))
"""Options, with the values with which a tower was measured."""


def check_tower(job: Draft, options: dict[str, Any]) -> None:
    """Raises NotYet for a vision tower whose units or hooks were not measured, IllegalLayout for what torch refuses."""
    if not job.graph.architecture.has_tower:
        return
    if not any(isinstance(kind.block, GridPatches) for kind in job.graph.kinds):
        raise job.not_yet("model", f"the vision tower of {job.graph.architecture.family} under fsdp1 (served: those of "
                          "Qwen 2 VL and Qwen 2.5 VL)")
    if job.scenario.training.method != "full":
        raise job.not_yet("training.method", f"{job.scenario.training.method} beside a vision tower under fsdp1, whose "
                          "flat parameters of frozen layers take no gradient")
    for name, usual in _MEASURED:
        if options.get(name) not in (None, *usual):
            raise job.not_yet(f"framework_options.{name}", f"{name}: {options[name]} of a model with a "
                              "vision tower")
    if _freezes_tower(job) and not options.get("use_orig_params"):
        raise job.illegal("framework_options.use_orig_params", "Must flatten tensors with uniform `requires_grad` when "
                          "`use_orig_params=False`: the root has frozen parts of the tower (write use_orig_params: "
                          "true)", FLATTEN)


def around_tower(job: Job, made: ImplementationOptions, options: dict[str, Any]) -> ImplementationOptions:
    """Settings of layers for a model with a tower: casts of images, and gradients that reach its patches."""
    return replace(made, casts_images="once" if options.get("use_orig_params") else "again",
                   patches_require_grad=_freezes_tower(job) and options.get(FROZEN_OPTION) is not False)


def _freezes_tower(job: Job) -> bool:
    return bool(job.scenario.training.frozen)


def is_end_of_tower(spec: TensorSpec) -> bool:
    """True for what is frozen of the root: see [Note: views of a flat parameter]."""
    return not spec.trainable and (spec.component == "projector" or spec.name == _PATCHES)
