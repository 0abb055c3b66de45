"""TransformerEngine's FusedAdam under NeMo Automodel: `training.optimizer.implementation: te`.

[Note: TE's FusedAdam]
TransformerEngine d0067d0d `pytorch/optimizers/fused_adam.py`. Both moments are fp32 whatever the parameter is, or what
`exp_avg_dtype` and `exp_avg_sq_dtype` say; both in bf16 are read in the kernel as they are (`fuse_unscale`), any other
narrow pair is first widened for all parameters together. `master_weights` adds an fp32 copy of every parameter, one in
fp32 too; with `store_param_remainders` a bf16 parameter has the 16 bits that it lacks in its place. All are made in
the first step (`initialize_state`), and the kernel needs nothing beside them. Automodel hands it local shards
(36044ad3 `components/optim/optimizer.py`, OptimizerFromFactoryConfig), and leaves out those without elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common.torch import States
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.framework import Optimizer
from simcore.placement.job import Draft, Job

__all__ = ["FUSED_ADAM_OPTIONS", "fused_adam", "fused_adam_assumptions", "fused_adam_states", "refuse_remainders",
           "runs_fused_adam"]

_REMAINDERS: Final = "store_param_remainders"
FUSED_ADAM_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {_REMAINDERS: (True, False)}
_FILE: Final = "TransformerEngine d0067d0d pytorch/optimizers/fused_adam.py"


def runs_fused_adam(job: Job) -> bool:
    """True if TE's kernel updates the parameters, see [Note: TE's FusedAdam]."""
    return job.scenario.training.optimizer.implementation == "te"


def refuse_remainders(job: Draft, options: Mapping[str, Any]) -> None:
    """Raises IllegalLayout if the scenario sets an option that only this optimizer reads."""
    job.refuse_idle(options, _REMAINDERS, "but in TE's FusedAdam (training.optimizer.implementation: te)")


def fused_adam(job: Draft, options: Mapping[str, Any], *, on_host: bool) -> Optimizer:
    """Returns the optimizer of a job; its defaults are noted.

    `options`: the framework options that the scenario sets; `on_host`: states are. Raises NotYet for what is not
    described, IllegalLayout for what upstream refuses.
    """
    optimizer = job.scenario.training.optimizer
    if not OPTIMIZERS[optimizer.name].is_adam:
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} by TransformerEngine under automodel")
    job.auto("training.optimizer.moments", optimizer.moments, "fp32", f"{_FILE}: exp_avg_dtype=torch.float32")
    if _master(job.auto("training.optimizer.master", optimizer.master, "none", f"{_FILE}: master_weights=False"),
               options) == "":
        job.refuse_idle(options, _REMAINDERS, "without masters (training.optimizer.master: fp32)")
    _check(job, on_host=on_host)
    return Optimizer(optimizer.name, "te", late_master=True)


def _check(job: Job, *, on_host: bool) -> None:
    optimizer = job.scenario.training.optimizer
    if optimizer.master == "bf16":
        raise job.illegal("training.optimizer.master", "FusedAdam only supports fp32/fp16 master weights.", _FILE)
    job.one_of("training.optimizer.master", optimizer.master, ("auto", "none", "fp32"))
    job.one_of("training.optimizer.moments", optimizer.moments, ("auto", "fp32", "bf16"))
    if optimizer.momentum:
        raise job.not_yet("training.optimizer.momentum", f"momentum of {optimizer.name}: it changes no bytes")
    if optimizer.paged:
        raise job.not_yet("training.optimizer.paged", "paged states of TE's FusedAdam")
    if on_host:
        raise job.not_yet("training.offload.optimizer", "states of TE's FusedAdam on the host: its kernel is the GPU's")


def _master(master: str, options: Mapping[str, Any]) -> str:
    """Format of masters of bf16 parameters; "" without any. Remainders have 16 bits, as bf16 has."""
    if master in ("auto", "none"):
        return ""
    return "bf16" if options.get(_REMAINDERS) else "fp32"


def fused_adam_states(job: Job, states: States, options: Mapping[str, Any]) -> States:
    """Returns the settings from which the states of a parameter follow; `states`: those of torch's optimizer."""
    optimizer = job.scenario.training.optimizer
    return replace(states, moments="fp32" if optimizer.moments == "auto" else optimizer.moments,
                   narrow_master=_master(optimizer.master, options))


def fused_adam_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about TE's FusedAdam, as (key, value, kind, source); () where it does not run."""
    if not runs_fused_adam(job):
        return ()
    return (("training.optimizer.implementation", "the kernel needs nothing beside the states; copies of a parameter "
             "in its own format and in fp32 while the first step makes its master are left out", "derived",
             f"{_FILE}: step, initialize_state"),)
