"""The optimizer of an Automodel job: torch's, TransformerEngine's, FlashOptim's or the `dion` package's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.frameworks.automodel.optimizers.dion import (
    DION_OPTIONS,
    dion_assumptions,
    dion_optimizer,
    matrix_rules,
    refuse_ahead,
    runs_dion,
)
from simcore.frameworks.automodel.optimizers.flash_adam import (
    FLASH_OPTIONS,
    flash_assumptions,
    flash_optimizer,
    flash_states,
    runs_flash_adam,
)
from simcore.frameworks.automodel.optimizers.fused_adam import (
    FUSED_ADAM_OPTIONS,
    fused_adam,
    fused_adam_assumptions,
    fused_adam_states,
    refuse_remainders,
    runs_fused_adam,
)
from simcore.frameworks.common.torch import States, states_of, torch_optimizer
from simcore.inputs.optimizers import AS_STORED, OPTIMIZERS
from simcore.placement.framework import Optimizer
from simcore.placement.job import Draft, Job

__all__ = ["OPTIMIZER_OPTIONS", "kept_states", "matrix_rules", "optimizer_assumptions", "optimizer_of"]

OPTIMIZER_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {**FUSED_ADAM_OPTIONS, **FLASH_OPTIONS, **DION_OPTIONS}


def optimizer_of(job: Draft, options: Mapping[str, Any], stored: str, *, plain: bool,
                 on_host: bool) -> Optimizer:
    """Returns the optimizer of a job; its defaults are noted.

    `options`: the framework options that the scenario sets; `stored`: dtype of parameters. `plain`: parameters are
    ordinary tensors, not DTensors; `on_host`: states are on the host.
    Raises NotYet for what is not described, IllegalLayout for what upstream refuses.
    """
    if not runs_fused_adam(job):
        refuse_remainders(job, options)
    if not runs_flash_adam(job):
        for name in FLASH_OPTIONS:
            job.refuse_idle(options, name, "but in FlashOptim's Adam (training.optimizer.implementation: flashoptim)")
    if not runs_dion(job):
        refuse_ahead(job, options)
    if runs_flash_adam(job):
        return flash_optimizer(job, options, stored, on_host=on_host)
    if runs_fused_adam(job):
        return fused_adam(job, options, on_host=on_host)
    if runs_dion(job):
        return dion_optimizer(job, options, on_host=on_host)
    optimizer = job.scenario.training.optimizer
    if plain and "transformers" in OPTIMIZERS[optimizer.name].libraries:
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} under automodel")
    if OPTIMIZERS[optimizer.name].states:
        job.auto("training.optimizer.moments", optimizer.moments, AS_STORED,
                 "recipes: torch.optim.Adam, zeros_like(parameter)")
    return torch_optimizer(job, "recipes: torch.optim.Adam, foreach by default on CUDA", plain=plain)


def kept_states(job: Job, options: Mapping[str, Any], *, plain: bool) -> States:
    """Returns the settings from which the states of a parameter follow; `options`, `plain` as in `optimizer_of`."""
    states = states_of(job, plain=plain)
    if runs_flash_adam(job):
        return flash_states(states, options)
    return fused_adam_states(job, states, options) if runs_fused_adam(job) else states


def optimizer_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about an optimizer that is not torch's, as (key, value, kind, source)."""
    return (*fused_adam_assumptions(job), *flash_assumptions(job), *dion_assumptions(job))
