"""Optimizers by their names in a scenario: one row each says which states it keeps and what its step needs.

Frameworks read the row: they take an optimizer if a library whose code they run has it, place its states by their own
rules, and refuse what they cannot combine it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["AS_STORED", "LOW_RANK", "OPTIMIZERS", "ROOTED_STATES", "OptimizerKind", "optimizers_of"]

AS_STORED: Final = "as each parameter is stored"
"""Format of moments that torch makes: `zeros_like` of the parameter."""
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """One optimizer: names of the states that it keeps of a parameter, and the work of its step.

    `libraries`: those whose code has it: torch (`torch.optim`), te (Megatron's optimizers), bitsandbytes, torchao
    and flashoptim (states of 8 bits), transformers (its Trainer's), galore-torch, apollo-torch. `states`: kept of
    every parameter; `momentum_states`: kept only if momentum is not 0. `matrix_states`: kept of a matrix of a
    hidden layer in place of `states`; empty: matrices are updated like other parameters. `rooted`: the state whose
    square root the step takes, or "". `layerwise`: each parameter is updated unsharded, by one data-parallel rank.
    `cpu_passes`: times that an unfused step on a CPU reads or writes all elements, counted in torch 2.13
    `optim/adam.py`, `optim/sgd.py`. `extents`: (state, word in `placement/extent.py`) of states that have another
    shape than their parameter. `flat_states`: kept in place of `states` where the optimizer sees parts of flat
    parameters, which have one dimension; empty: the same. `projects`: matrices that a scenario names have states of
    a low rank, see `frameworks/common/low_rank`.
    """

    libraries: tuple[str, ...]
    states: tuple[str, ...] = ()
    momentum_states: tuple[str, ...] = ()
    matrix_states: tuple[str, ...] = ()
    rooted: str = ""
    layerwise: bool = False
    cpu_passes: int = 20
    extents: tuple[tuple[str, str], ...] = ()
    flat_states: tuple[str, ...] = ()
    projects: bool = False

    @property
    def is_adam(self) -> bool:
        """True for Adam and AdamW: two moments of every parameter. Libraries that shard states often know no other."""
        return self.states == _MOMENTS and not self.matrix_states and not self.projects

    def kept(self, momentum: float | None, *, flat: bool = False) -> tuple[str, ...]:
        """Returns the states of a parameter that is no matrix of a hidden layer; momentum None counts as 0.

        `flat`: the optimizer sees a part of a flat parameter.
        """
        states = self.flat_states if flat and self.flat_states else self.states
        return (*states, *(self.momentum_states if momentum else ()))


OPTIMIZERS: Final[Mapping[str, OptimizerKind]] = MappingProxyType({
    "adamw": OptimizerKind(("torch", "te", "bitsandbytes", "torchao", "flashoptim"), _MOMENTS, rooted="exp_avg_sq"),
    "adam": OptimizerKind(("torch", "te", "bitsandbytes", "torchao", "flashoptim"), _MOMENTS, rooted="exp_avg_sq"),
    "sgd": OptimizerKind(("torch", "te"), momentum_states=("momentum_buffer",), cpu_passes=11),
    "muon": OptimizerKind(("torch", "te"), _MOMENTS, matrix_states=("momentum_buffer",), rooted="exp_avg_sq"),
    "dist_muon": OptimizerKind(("te",), _MOMENTS, matrix_states=("momentum_buffer",), rooted="exp_avg_sq",
                               layerwise=True),
    "adafactor": OptimizerKind(
        ("transformers",), ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq", "RMS"), rooted="exp_avg_sq",
        extents=(("exp_avg_sq_row", "rows"), ("exp_avg_sq_col", "columns"), ("exp_avg_sq", "vectors"), ("RMS", "one")),
        flat_states=("exp_avg_sq",)),
    "galore": OptimizerKind(("galore-torch",), _MOMENTS, rooted="exp_avg_sq", projects=True),
    "apollo": OptimizerKind(("apollo-torch",), _MOMENTS, rooted="exp_avg_sq", projects=True),
})
"""Optimizer name in a scenario -> its states and work."""

LOW_RANK: Final = tuple(name for name, kind in OPTIMIZERS.items() if kind.projects)
"""Names of optimizers that project gradients of matrices to a low rank."""

ROOTED_STATES: Final = frozenset(kind.rooted for kind in OPTIMIZERS.values() if kind.rooted)
"""Names of states whose square root a step takes."""


def optimizers_of(library: str, *, by_matrix: bool = True) -> tuple[str, ...]:
    """Returns the names of a library's optimizers; with `by_matrix` False, without those that have `matrix_states`."""
    return tuple(name for name, kind in OPTIMIZERS.items()
                 if library in kind.libraries and (by_matrix or not kind.matrix_states))
