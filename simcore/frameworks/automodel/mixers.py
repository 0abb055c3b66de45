"""Checks of jobs under NeMo Automodel whose layers have mixers of another kind: delta nets, compressed attention."""

from __future__ import annotations

from simcore.operators.automodel.sparse import FROM_ZERO
from simcore.placement.job import Job

__all__ = ["check_mixers"]


def check_mixers(job: Job) -> None:
    """Raises NotYet for what was not measured of layers with delta nets or with compressed attention."""
    if job.graph.implementation != "automodel":
        return
    if job.graph.architecture.decoder in FROM_ZERO:
        _check_delta(job)
    if job.graph.architecture.decoder == "deepseek_v4":
        _check_compressed(job)


def _check_delta(job: Job) -> None:
    """Raises NotYet for layers of Qwen 3.5 and Qwen3-Next of another release, or that are split or packed."""
    mesh, name = job.mesh, job.graph.architecture.family
    if job.scenario.training.lengths == "packed":
        raise job.not_yet("training.lengths", f"packed sequences of {name} under automodel")
    if name == "qwen3_next":
        return  # the axes are those that its class says it supports
    if job.scenario.framework_version not in ("auto", "0.7.0"):
        raise job.not_yet("framework_version", f"{name} under automodel {job.scenario.framework_version}")
    for axis, size in (("tp", mesh.tp), ("cp", mesh.cp), ("pp", mesh.pp)):
        if size > 1:
            raise job.not_yet(f"mesh.{axis}", f"{axis} {size} of {name} under automodel, whose gated delta nets are "
                              "measured on whole sequences and heads")


def _check_compressed(job: Job) -> None:
    """Raises NotYet: layers are measured, steps are not."""
    raise job.not_yet("model", "steps of deepseek_v4 in Automodel's own layers: a layer gathers its parameters in fp32 "
                      "in units of their own (0.7.0 models/deepseek_v4/fsdp.py)")
