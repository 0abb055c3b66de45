"""Checks of jobs under NeMo Automodel whose layers have mixers of another kind: delta nets, compressed attention."""

from __future__ import annotations

from simcore.operators.automodel.sparse import FROM_ZERO, has_streams, is_eager_sparse, makes_tables
from simcore.placement.job import Job

__all__ = ["check_mixers"]


def check_mixers(job: Job) -> None:
    """Raises NotYet for what was not measured of layers with delta nets or with compressed attention."""
    if job.graph.implementation != "automodel":
        return
    decoder = job.graph.architecture.decoder
    if decoder in FROM_ZERO and not makes_tables(decoder):
        _check_delta(job)
    if makes_tables(decoder) and job.scenario.training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences of Step 3.5 under automodel")
    if is_eager_sparse(decoder) and job.mesh.cp > 1:
        raise job.not_yet("mesh.cp", "context parallelism of MiMo-V2-Flash by TransformerEngine (0.7.0 models/"
                          "mimo_v2_flash/cp.py)")
    if has_streams(decoder):
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
    """Raises NotYet for what was not measured of DeepSeek-V4: other ways to train it than all of it, over experts."""
    training, options, mesh = job.scenario.training, job.scenario.framework_options, job.mesh
    dispatchers = ("deepep", "hybridep")
    reshards = options.get("reshard_after_forward") is True or options.get("moe.reshard_after_forward") is True
    for key, said, what in (
            ("model.overrides.num_nextn_predict_layers", job.graph.architecture.announced > 0,
             "multi-token prediction (served: 0)"),
            ("mesh.cp", mesh.cp > 1, "context parallelism"),
            ("training.lengths", training.lengths == "packed", "packed sequences"),
            ("training.method", training.method != "full", f"method {training.method}"),
            ("training.precision.params", training.precision.params not in ("auto", job.compute),
             f"parameters in {training.precision.params}"),
            ("training.precision.compute", bool(job.narrow), "products in 8 bits"),
            ("training.loss", training.loss not in ("auto", "masked_fp32", "masked"), f"loss {training.loss}"),
            ("framework_options.reshard_after_forward", reshards, "units that are gathered again for backward"),
            ("framework_options.dispatcher", options.get("dispatcher", "deepep") not in dispatchers,
             f"dispatcher {options.get('dispatcher')}"),
            ("framework_version", job.scenario.framework_version not in ("auto", "0.7.0"), "other releases")):
        if said:
            raise job.not_yet(key, f"{what} of DeepSeek-V4 under automodel with its own layers")
