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

from simcore.frameworks.automodel.flash_adam import (
    FLASH_OPTIONS,
    flash_assumptions,
    flash_optimizer,
    flash_states,
    runs_flash_adam,
)
from simcore.frameworks.automodel.policies import rests_on_host
from simcore.frameworks.common.torch import States, states_of, torch_optimizer
from simcore.inputs.optimizers import AS_STORED, OPTIMIZERS
from simcore.placement.framework import Optimizer
from simcore.placement.job import Draft, Job

__all__ = ["FUSED_ADAM_OPTIONS", "fused_adam_assumptions", "kept_states", "optimizer_of", "runs_fused_adam"]

_REMAINDERS: Final = "store_param_remainders"
FUSED_ADAM_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {_REMAINDERS: (True, False), **FLASH_OPTIONS}
_FILE: Final = "TransformerEngine d0067d0d pytorch/optimizers/fused_adam.py"


def runs_fused_adam(job: Job) -> bool:
    """True if TE's kernel updates the parameters, see [Note: TE's FusedAdam]."""
    return job.scenario.training.optimizer.implementation == "te"


def optimizer_of(job: Draft, options: Mapping[str, Any], stored: str, *, plain: bool) -> Optimizer:
    """Returns the optimizer of a job; its defaults are noted.

    `options`: the framework options that the scenario sets; `stored`: dtype of parameters. `plain`: parameters are
    ordinary tensors, not DTensors.
    Raises NotYet for what is not described of TE's, IllegalLayout for what it refuses.
    """
    optimizer = job.scenario.training.optimizer
    if runs_flash_adam(job):
        job.refuse_idle(options, _REMAINDERS, "but in TE's FusedAdam (training.optimizer.implementation: te)")
        return flash_optimizer(job, options, stored)
    for name in FLASH_OPTIONS:
        job.refuse_idle(options, name, "but in FlashOptim's Adam (training.optimizer.implementation: flashoptim)")
    if not runs_fused_adam(job):
        job.refuse_idle(options, _REMAINDERS, "but in TE's FusedAdam (training.optimizer.implementation: te)")
        if plain and "transformers" in OPTIMIZERS[optimizer.name].libraries:
            raise job.not_yet("training.optimizer.name", f"{optimizer.name} under automodel")
        if OPTIMIZERS[optimizer.name].states:
            job.auto("training.optimizer.moments", optimizer.moments, AS_STORED,
                     "recipes: torch.optim.Adam, zeros_like(parameter)")
        return torch_optimizer(job, "recipes: torch.optim.Adam, foreach by default on CUDA", plain=plain)
    if not OPTIMIZERS[optimizer.name].is_adam:
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} by TransformerEngine under automodel")
    job.auto("training.optimizer.moments", optimizer.moments, "fp32", f"{_FILE}: exp_avg_dtype=torch.float32")
    if _master(job.auto("training.optimizer.master", optimizer.master, "none", f"{_FILE}: master_weights=False"),
               options) == "":
        job.refuse_idle(options, _REMAINDERS, "without masters (training.optimizer.master: fp32)")
    _check(job)
    return Optimizer(optimizer.name, "te", late_master=True)


def _check(job: Job) -> None:
    optimizer = job.scenario.training.optimizer
    if optimizer.master == "bf16":
        raise job.illegal("training.optimizer.master", "FusedAdam only supports fp32/fp16 master weights.", _FILE)
    job.one_of("training.optimizer.master", optimizer.master, ("auto", "none", "fp32"))
    job.one_of("training.optimizer.moments", optimizer.moments, ("auto", "fp32", "bf16"))
    if optimizer.momentum:
        raise job.not_yet("training.optimizer.momentum", f"momentum of {optimizer.name}: it changes no bytes")
    if optimizer.paged:
        raise job.not_yet("training.optimizer.paged", "paged states of TE's FusedAdam")
    if rests_on_host(job):
        raise job.not_yet("training.offload.optimizer", "states of TE's FusedAdam on the host: its kernel is the GPU's")


def _master(master: str, options: Mapping[str, Any]) -> str:
    """Format of masters of bf16 parameters; "" without any. Remainders have 16 bits, as bf16 has."""
    if master in ("auto", "none"):
        return ""
    return "bf16" if options.get(_REMAINDERS) else "fp32"


def kept_states(job: Job, options: Mapping[str, Any], *, plain: bool) -> States:
    """Returns the settings from which the states of a parameter follow; `options`, `plain` as in `optimizer_of`."""
    states, optimizer = states_of(job, plain=plain), job.scenario.training.optimizer
    if runs_flash_adam(job):
        return flash_states(states, options)
    if not runs_fused_adam(job):
        return states
    return replace(states, moments="fp32" if optimizer.moments == "auto" else optimizer.moments,
                   narrow_master=_master(optimizer.master, options))


def fused_adam_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about TE's FusedAdam or FlashOptim's, as (key, value, kind, source)."""
    if not runs_fused_adam(job):
        return flash_assumptions(job)
    return (("training.optimizer.implementation", "the kernel needs nothing beside the states; copies of a parameter "
             "in its own format and in fp32 while the first step makes its master are left out", "derived",
             f"{_FILE}: step, initialize_state"),)
