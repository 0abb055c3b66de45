"""Capabilities of a framework's table, declared once: settings that it serves, and the refusal of all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from simcore.placement.job import Job

__all__ = ["ALL_AXES", "ONE_STAGE", "PLAIN_TORCH", "Capabilities"]

_AXES: Final = {"pp": "pipeline stages", "dp_replicate": "replicas", "dp_shard": "shards", "cp": "context parallelism",
                "tp": "tensor parallelism", "ep": "expert parallelism", "etp": "experts split by width"}
ALL_AXES: Final = tuple(_AXES)
PLAIN_TORCH: Final[Mapping[str, str]] = {
    "training.sequence_parallel": "False", "training.precision.main_grads": "auto",
    "training.precision.experts": "auto", "training.optimizer.master": "none", "training.pipeline.layers": "auto"}
"""Settings that plain PyTorch has no place for: one copy of a parameter, no masters, gradients in one dtype."""
ONE_STAGE: Final[Mapping[str, str]] = {"training.pipeline.layers": "auto", "training.pipeline.schedule": "1f1b"}
"""Settings of a pipeline, as a table without pipeline stages has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Settings that a framework's table serves for all of its jobs.

    `axes`: mesh axes that may have more than one rank; the others raise NotYet, or IllegalLayout with `axes_refusal`
    (message, rule of the framework) if it has none of them itself. `offload`: parts (params, optimizer, gradients,
    activations) that may rest outside the device. `fixed`: scenario key -> the only value, besides "auto", that the
    table knows. `virtual_stages`: a rank may run several chunks of layers. `no_capacity`: the rule by which experts
    have no capacity, "" if they may. `absent`: axes, and parts outside the device, that the framework does not have ->
    (message, rule of the framework).
    """

    axes: tuple[str, ...]
    axes_refusal: tuple[str, str] | None = None
    offload: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    virtual_stages: bool = False
    no_capacity: str = ""
    absent: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def check(self, job: Job) -> None:
        """Raises NotYet or IllegalLayout for the first setting of a job that is not served."""
        self._check_axes(job)
        for part, reason in self.absent.items():
            if part not in _AXES and job.scenario.training.offload.part(part)[1]:
                raise job.illegal(f"training.offload.{part}", *reason)
        job.refuse_offload(*self.offload)
        job.refuse_given(self.fixed)
        if self.no_capacity:
            job.refuse_capacity(self.no_capacity)
        if job.scenario.training.pipeline.virtual_stages > 1 and not self.virtual_stages:
            raise job.not_yet("training.pipeline.virtual_stages", f"virtual stages under {job.scenario.framework}")

    def _check_axes(self, job: Job) -> None:
        for axis, name in _AXES.items():
            if axis in self.axes or getattr(job.mesh, axis) == 1:
                continue
            if axis in self.absent:
                raise job.illegal(f"mesh.{axis}", *self.absent[axis])
            if self.axes_refusal:
                raise job.illegal(f"mesh.{axis}", *self.axes_refusal)
            raise job.not_yet(f"mesh.{axis}", f"{job.scenario.framework} with {name}")
