"""Muon of the `dion` package under NeMo Automodel: `training.optimizer.implementation: dion`.

[Note: dion under Automodel] 0.7.0 `components/optim/optimizer.py` MuonConfig, `components/optim/dion.py`: matrices but
for those of nn.Embedding and lm_head are Muon's, all else is AdamW's in groups of vectors, embedding and head
(_separate_param_groups). Its `uv.lock` names microsoft/dion 7452a58. States are zeros_like of the parameter: a momentum
of a matrix, and a variance of what AdamW updates. The step: [Note: dion's Muon].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common.steps.dion import DION
from simcore.frameworks.common.torch import States, is_hidden_matrix
from simcore.inputs.optimizers import AS_STORED, OPTIMIZERS
from simcore.placement.framework import Optimizer, Rule, TensorPolicy
from simcore.placement.job import Draft, Job

__all__ = ["DION_OPTIONS", "dion_assumptions", "dion_optimizer", "matrix_rules", "refuse_ahead", "runs_dion"]

_NESTEROV: Final = "nesterov"
DION_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {_NESTEROV: (True, False)}
_FILE: Final = "microsoft/dion 7452a58 dion/muon.py"
_MEASURED: Final = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose parameters were grouped by its own code, and compared."""


def runs_dion(job: Job) -> bool:
    """True if the package's Muon updates the parameters, see [Note: dion under Automodel]."""
    return job.scenario.training.optimizer.implementation == DION


def refuse_ahead(job: Draft, options: Mapping[str, Any]) -> None:
    """Raises IllegalLayout if the scenario sets an option that only this optimizer reads."""
    job.refuse_idle(options, _NESTEROV, f"but in the dion package's Muon (training.optimizer.implementation: {DION})")


def dion_optimizer(job: Draft, options: Mapping[str, Any], *, on_host: bool) -> Optimizer:
    """Returns the optimizer of a job; its defaults are noted.

    `options`: the framework options that the scenario sets; `on_host`: states are. Raises IllegalLayout for what
    upstream refuses, NotYet for what is not described.
    """
    optimizer = job.scenario.training.optimizer
    if optimizer.name != "muon":
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} of dion under automodel")
    job.one_of("training.optimizer.moments", optimizer.moments, ("auto",))
    job.note("training.optimizer.moments", AS_STORED, f"{_FILE}: zeros_like(param)")
    if _NESTEROV not in options:
        job.note(f"framework_options.{_NESTEROV}", "false", "0.7.0 components/optim/optimizer.py MuonConfig")
    _check(job, on_host=on_host)
    _check_rows(job)
    return Optimizer(optimizer.name, DION, ahead=options.get(_NESTEROV) is True)


def _check(job: Draft, *, on_host: bool) -> None:
    """Raises IllegalLayout for copies of shards, NotYet for what was not compared."""
    optimizer, mesh = job.scenario.training.optimizer, job.mesh
    if mesh.dp_replicate > 1:
        raise job.illegal("mesh.dp_replicate", "Only 1D DeviceMesh is supported, but got 2D. For HSDP, provide the 1D "
                          "sharded sub-mesh.", f"{_FILE} Muon.__init__; Automodel 0.7.0 components/optim/dion.py "
                          "_get_dion_mesh hands over both dimensions")
    for axis in ("tp", "ep", "cp", "pp"):
        if mesh.axis(axis).size > 1:
            raise job.not_yet(f"mesh.{axis}", f"dion's Muon with {axis} under automodel")
    if job.graph.architecture.family not in _MEASURED or job.graph.implementation == "hub":
        raise job.not_yet("training.optimizer.implementation", f"dion's Muon of {job.graph.architecture.family} in "
                          f"{job.graph.implementation}'s layers under automodel")
    for key, said, what in (
            ("training.method", job.scenario.training.method != "full", "adapters"),
            ("training.frozen", bool(job.scenario.training.frozen), "frozen parameters"),
            ("framework_version", job.scenario.framework_version not in ("auto", "0.7.0"), "other releases"),
            ("training.optimizer.paged", optimizer.paged, "paged states"),
            ("training.optimizer.momentum", bool(optimizer.momentum), "a factor of momenta, which changes no bytes,"),
            ("training.offload.optimizer", on_host, "states on the host")):
        if said:
            raise job.not_yet(key, f"{what} with dion's Muon under automodel")


def _check_rows(job: Draft) -> None:
    """Raises IllegalLayout, with upstream's words, for a matrix whose rows do not divide over the ranks."""
    ranks = job.mesh.axis("dp_shard_cp").size
    for layer in job.graph.layers:
        for spec in job.graph.tensors[layer.kind]:
            if is_hidden_matrix(spec) and spec.shape[0] % ranks:
                raise job.illegal("mesh.dp_shard", f"Shard dimension 0 size {spec.shape[0]} is not divisible by world "
                                  f"size {ranks}. ({spec.name})", f"{_FILE} muon_update_batch_async")


def matrix_rules(kept: States, plain: TensorPolicy) -> list[Rule]:
    """Returns the rule of matrices of hidden layers, if the optimizer updates them in another way; else none.

    `kept`: the optimizer's states; `plain`: the policy of other parameters.
    """
    kind = OPTIMIZERS[kept.name]
    if not kind.matrix_states:
        return []
    states = tuple((name, plain.optimizer_states[0][1]) for name in kind.matrix_states)
    return [Rule(is_hidden_matrix, replace(plain, name=f"{plain.name}, matrix", optimizer_states=states))]


def dion_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about the package's Muon, as (key, value, kind, source); () where it is not run."""
    if not runs_dion(job):
        return ()
    return (("training.optimizer.implementation", "compiled functions hold what Inductor's code for a CPU holds; "
             "all-to-alls of the step overlap nothing", "assumed", f"{_FILE}, torch 2.13 _inductor; AsyncRuntime runs "
             "three batches at a time"),)
