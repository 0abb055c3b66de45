"""Optimizers by their names in a scenario: one row each says which states it keeps and what its step needs.

Frameworks read the row: they take an optimizer if a library whose code they run has it, place its states by their own
rules, and refuse what they cannot combine it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

__all__ = ["AS_STORED", "DECAYED", "LOW_RANK", "OPTIMIZERS", "SIZING_STATES", "OptimizerKind", "StepForm",
           "optimizers_of"]

AS_STORED: Final = "as each parameter is stored"
"""Format of moments that torch makes: `zeros_like` of the parameter."""
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class StepForm:
    """Copies of a state that an implementation of a step holds for a moment, and its passes over memory.

    `at_once`: copies of all tensors of a parameter group together. One tensor after the other: `of_one` copies of the
    tensor that is updated, of which `left` wait until the next one has its own. `passes`: times that a step reads or
    writes (all states of a tensor, its gradient or parameter); None: each once, by one kernel. `stops_sharded`: words
    at which it stops over DTensors, "" where it runs.
    """

    at_once: int = 0
    of_one: int = 0
    left: int = 0
    passes: tuple[int, int] | None = None
    stops_sharded: str = ""


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """One optimizer: names of the states that it keeps of a parameter, and the work of its step.

    `libraries`: those whose code has it: torch (`torch.optim`, or a package of its own over torch's operators), te
    (Megatron's optimizers), deepspeed (its fused kernels), bitsandbytes, torchao and flashoptim (states of 8 bits),
    transformers (its Trainer's), galore-torch, apollo-torch. `states`: kept of every parameter; `momentum_states`:
    kept only if momentum is not 0. `matrix_states`: kept of a matrix of a hidden layer in place of `states`; empty:
    matrices are updated like other parameters. `host_states`: kept by DeepSpeed's optimizer for CPUs, () if it has
    none. `sized_by`: the state in whose format `forms` hold copies, or "". `forms`: implementations of torch's
    library and what their steps hold, by name; `decayed`: the same with a weight decay that is added to a copy of the
    gradients, empty where it changes no bytes. `code`: the file that they are of. `is_paged`: bitsandbytes has it with
    paged states. `is_early`: states are made with the optimizer, not in the first step. `layerwise`: each parameter is
    updated unsharded, by one data-parallel rank. `cpu_passes`: times that an unfused step on a CPU
    reads or writes all elements, counted in `code`. `extents`: (state, word in `placement/extent.py`) of states
    that have another shape than their parameter. `flat_states`: kept in place of `states` where the optimizer sees
    parts of flat parameters, which have one dimension; empty: the same. `projects`: matrices that a scenario names
    have states of a low rank, see `frameworks/common/low_rank`. `stops_sharded`: words at which every
    implementation stops over DTensors, "" where one runs.
    """

    libraries: tuple[str, ...]
    states: tuple[str, ...] = ()
    momentum_states: tuple[str, ...] = ()
    matrix_states: tuple[str, ...] = ()
    host_states: tuple[str, ...] = ()
    sized_by: str = ""
    forms: Mapping[str, StepForm] = field(default_factory=dict)
    decayed: Mapping[str, StepForm] = field(default_factory=dict)
    code: str = ""
    is_paged: bool = True
    is_early: bool = False
    layerwise: bool = False
    cpu_passes: int = 20
    extents: tuple[tuple[str, str], ...] = ()
    flat_states: tuple[str, ...] = ()
    projects: bool = False
    stops_sharded: str = ""

    @property
    def is_adam(self) -> bool:
        """True for Adam and AdamW: two moments of every parameter. Libraries that shard states often know no other."""
        return self.states == _MOMENTS and not self.matrix_states and not self.projects

    @property
    def is_of_bitsandbytes(self) -> bool:
        """True if no other library has it with states of 8 bits: it is meant where a scenario asks for them."""
        return "bitsandbytes" in self.libraries and "torchao" not in self.libraries

    def kept(self, momentum: float | None, *, flat: bool = False) -> tuple[str, ...]:
        """Returns the states of a parameter that is no matrix of a hidden layer; momentum None counts as 0.

        `flat`: the optimizer sees a part of a flat parameter.
        """
        states = self.flat_states if flat and self.flat_states else self.states
        return (*states, *(self.momentum_states if momentum else ()))


_LOOP: Final = StepForm(of_one=2, left=1, passes=(7, 6))
_ADAM: Final = OptimizerKind(
    ("torch", "te", "deepspeed", "bitsandbytes", "torchao", "flashoptim"), _MOMENTS, host_states=_MOMENTS,
    sized_by="exp_avg_sq", code="torch 2.13 optim/adam.py",
    forms={"foreach": StepForm(at_once=1, passes=(7, 6)), "fused": StepForm(), "for_loop": _LOOP})
_FUSED_SGD: Final = StepForm(
    stops_sharded="Operator aten._fused_sgd_.default does not have a sharding strategy registered")
_MUON: Final = OptimizerKind(
    ("torch", "te"), _MOMENTS, matrix_states=("momentum_buffer",), sized_by="exp_avg_sq", code=_ADAM.code,
    forms={**_ADAM.forms, "foreach": StepForm(at_once=1)})
OPTIMIZERS: Final[Mapping[str, OptimizerKind]] = MappingProxyType({
    "adamw": _ADAM,
    "adam": _ADAM,
    "sgd": OptimizerKind(("torch", "te"), momentum_states=("momentum_buffer",), cpu_passes=11,
                         code="torch 2.13 optim/sgd.py",
                         forms={"foreach": StepForm(), "fused": _FUSED_SGD, "for_loop": StepForm()},
                         decayed={"foreach": StepForm(at_once=1, passes=(5, 6)), "fused": _FUSED_SGD,
                                  "for_loop": StepForm(of_one=1, passes=(5, 6))}),
    "muon": _MUON,
    "dist_muon": replace(_MUON, libraries=("te",), layerwise=True),
    "lion": OptimizerKind(
        ("torch", "deepspeed", "bitsandbytes"), ("exp_avg",), host_states=_MOMENTS, sized_by="exp_avg", cpu_passes=19,
        code="lion-pytorch 0.2.5 lion_pytorch.py", forms={"for_loop": StepForm(of_one=2, passes=(13, 6))}),
    "ademamix": OptimizerKind(("bitsandbytes",), ("exp_avg", "exp_avg_slow", "exp_avg_sq"),
                              code="bitsandbytes 0.50.2 optim/ademamix.py"),
    "rmsprop": OptimizerKind(
        ("torch", "bitsandbytes"), ("square_avg",), ("momentum_buffer",), sized_by="square_avg", cpu_passes=13,
        code="torch 2.13 optim/rmsprop.py", is_paged=False,
        forms={"foreach": StepForm(at_once=1, passes=(9, 4)), "for_loop": StepForm(of_one=1, left=1, passes=(9, 4))},
        decayed={"foreach": StepForm(at_once=2, passes=(9, 7)),
                 "for_loop": StepForm(of_one=2, left=1, passes=(9, 7))}),
    "adagrad": OptimizerKind(
        ("torch",), ("sum",), host_states=("exp_avg_sq",), sized_by="sum", cpu_passes=11, is_early=True,
        code="torch 2.13 optim/adagrad.py",
        forms={"foreach": StepForm(at_once=2, passes=(7, 6)), "fused": StepForm(stops_sharded=(
                   "Operator aten._fused_adagrad_.default does not have a sharding strategy registered")),
               "for_loop": StepForm(of_one=1, left=1, passes=(7, 4))},
        decayed={"foreach": StepForm(at_once=2, passes=(7, 9)), "fused": StepForm(),
                 "for_loop": StepForm(of_one=2, left=1, passes=(7, 7))}),
    "adafactor": OptimizerKind(
        ("transformers",), ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq", "RMS"), sized_by="exp_avg_sq",
        extents=(("exp_avg_sq_row", "rows"), ("exp_avg_sq_col", "columns"), ("exp_avg_sq", "vectors"), ("RMS", "one")),
        flat_states=("exp_avg_sq",),
        code="transformers 5.23 optimization.py; torch 2.13 optim/_adafactor.py _single_tensor_adafactor",
        stops_sharded="aten.add_.Tensor got mixed torch.Tensor and DTensor (transformers'); aten.pow_.Scalar: in-place "
                      "operations that require placement changes are not supported (torch's)"),
    "galore": OptimizerKind(("galore-torch",), _MOMENTS, sized_by="exp_avg_sq", projects=True),
    "apollo": OptimizerKind(("apollo-torch",), _MOMENTS, sized_by="exp_avg_sq", projects=True),
})
"""Optimizer name in a scenario -> its states and work.

AdEMAMix has its fast and its slow moment in one tensor of twice the size; Lion's on DeepSpeed's CPUs keeps a second
moment that nothing reads (0.19.6 `ops/lion/cpu_lion.py`). Measured: `tests/truth/probe_optimizers.py`.
"""

LOW_RANK: Final = tuple(name for name, kind in OPTIMIZERS.items() if kind.projects)
"""Names of optimizers that project gradients of matrices to a low rank."""

DECAYED: Final = tuple(name for name, kind in OPTIMIZERS.items() if kind.decayed)
"""Names of torch's optimizers that add weight decay to a copy of the gradients (2.13 `optim/sgd.py`, `rmsprop.py`)."""

SIZING_STATES: Final = frozenset(kind.sized_by for kind in OPTIMIZERS.values() if kind.sized_by)
"""Names of states in whose format a step holds copies."""


def optimizers_of(library: str, *, by_matrix: bool = True) -> tuple[str, ...]:
    """Returns the names of a library's optimizers; with `by_matrix` False, without those that have `matrix_states`."""
    return tuple(name for name, kind in OPTIMIZERS.items()
                 if library in kind.libraries and (by_matrix or not kind.matrix_states))
