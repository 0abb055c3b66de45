"""FlashOptim's Adam under NeMo Automodel: `training.optimizer.implementation: flashoptim`.

[Note: FlashOptim's states]
databricks/flashoptim 8b2d966e `flashoptim/optimizers.py`. Both moments have 8 bits, and 32 of them share a scale in
fp16 (quantize, group_size), whatever the parameter is. A master of 24 or 32 bits is a bf16 parameter and the bits that
it lacks (`error_bits`); fp32 parameters have none. States are made of local shards in the first step
(_ensure_state_initialized), from zeros like the parameter that are there for a moment; the fused kernel updates one
parameter at a time and needs nothing beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common.torch import FLASH, States
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.framework import Optimizer
from simcore.placement.job import Draft, Job

__all__ = ["FLASH_OPTIONS", "flash_assumptions", "flash_optimizer", "flash_states", "runs_flash_adam"]

_BITS: Final = "master_weight_bits"
FLASH_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {_BITS: (16, 24, 32)}
_FILE: Final = "flashoptim 8b2d966e flashoptim/optimizers.py"
_ERRORS: Final = {16: "", 24: "int8", 32: "bf16"}
"""Format of what a bf16 parameter lacks, by the bits of the master; int16 is as long as bf16."""


def runs_flash_adam(job: Job) -> bool:
    """True if FlashOptim's kernel updates the parameters, see [Note: FlashOptim's states]."""
    return job.scenario.training.optimizer.implementation == FLASH


def flash_optimizer(job: Draft, options: Mapping[str, Any], stored: str, *, on_host: bool) -> Optimizer:
    """Returns the optimizer of a job; its defaults are noted.

    `options`: the framework options that the scenario sets; `stored`: dtype of parameters; `on_host`: states
    are. Raises IllegalLayout for what upstream refuses, NotYet for what is not described.
    """
    optimizer = job.scenario.training.optimizer
    if not OPTIMIZERS[optimizer.name].is_adam:
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} of flashoptim under automodel")
    job.one_of("training.optimizer.moments", optimizer.moments, ("auto", "int8"))
    job.auto("training.optimizer.moments", optimizer.moments, "int8", f"{_FILE}: quantize=True")
    if _BITS not in options:
        job.note(f"framework_options.{_BITS}", "24", f"{_FILE}: master_weight_bits=24")
    bits = options.get(_BITS, 24)
    if stored == "fp32" and bits != 16:
        raise job.illegal(f"framework_options.{_BITS}", f"master_weight_bits={bits} has no effect when all parameters "
                          "are fp32, since fp32 already uses 32 bits.", f"{_FILE}: FlashOptimizer")
    if optimizer.paged or optimizer.momentum:
        raise job.not_yet("training.optimizer", "paged states, or a momentum, of flashoptim's Adam")
    if on_host:
        raise job.not_yet("training.offload.optimizer", "states of flashoptim's Adam on the host")
    return Optimizer(optimizer.name, FLASH, late_master=True)


def flash_states(states: States, options: Mapping[str, Any]) -> States:
    """Returns the settings from which the states of a parameter follow; `states`: those of torch's optimizer."""
    return replace(states, moments="int8", low_bit=FLASH, narrow_master=_ERRORS[options.get(_BITS, 24)], wide_master="")


def flash_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about FlashOptim's Adam, as (key, value, kind, source); () where it does not run."""
    if not runs_flash_adam(job):
        return ()
    return (("training.optimizer.implementation", "the kernel needs nothing beside the states; zeros like a parameter, "
             "of which the first step makes its moments, are left out", "derived",
             f"{_FILE}: step_param, _ensure_state_initialized"),)
