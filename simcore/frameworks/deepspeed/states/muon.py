"""DeepSpeed's own Muon under ZeRO-1 and 2.

[Note: Muon under ZeRO] 0.19.6: `"optimizer": {"type": "Muon"}` of its configuration alone. `deepspeed/__init__.py`,
set_optimizer_flags: parameters of two or more dimensions are Muon's unless their names have "embed" or "lm_head";
`runtime/engine.py`, _configure_basic_optimizer: they are the first parameter group, all others the second, which
FusedAdam updates. `runtime/zero/stage_1_and_2.py`, get_flat_partition: behind the last backward each rank updates every
matrix that has an element in its part, whole, so its momentum is that of whole matrices, in the format of gradients;
the new updates, as large, stay beside the averaged gradients until the step has copied its part of them. Then
`runtime/zero/muon/muon_optimizer.py` only adds them to the masters. muon_update is compiled: matrices are made
orthogonal in fp16 over their Gram matrix (`original_muon.py`, zeropower_via_gram_newtonschulz).
"""

from __future__ import annotations

from typing import Final

from simcore.inputs.optimizers import OPTIMIZERS
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Optimizer
from simcore.placement.job import Draft

__all__ = ["ASSUMED", "held_in_update", "is_muons", "momentum_of", "muon_optimizer", "product_flops", "uses_muon"]

_ENGINE: Final = "deepspeed 0.19.6 runtime/engine.py _configure_basic_optimizer"
_NOT_MUONS: Final = ("embedding", "lm_head")
_UNNAMED: Final = ("wte.", "wpe.")
"""Embeddings whose names do not say so."""
ASSUMED: Final = (
    ("training.optimizer", "Newton-Schulz steps over the Gram matrix in fp16 (ns_method gram); compiled: at most two "
     "copies of a matrix in 16 bits and four of its Gram matrix at a time", "derived",
     "deepspeed 0.19.6 runtime/zero/muon/original_muon.py; Inductor's code of torch 2.13 for a CPU"),)


def uses_muon(job: Draft) -> bool:
    """Returns True if the job's optimizer updates matrices in another way than other parameters."""
    return bool(OPTIMIZERS[job.scenario.training.optimizer.name].matrix_states)


def is_muons(spec: TensorSpec) -> bool:
    """Returns True for a parameter that set_optimizer_flags gives to Muon."""
    is_named = spec.component in _NOT_MUONS and not spec.name.startswith(_UNNAMED)
    return len(spec.shape) > 1 and not is_named and "embed" not in spec.name.lower()


def muon_optimizer(job: Draft, stage: int, *, on_host: bool, refused: tuple[str, ...]) -> Optimizer:
    """Returns DeepSpeed's Muon; raises IllegalLayout or NotYet for what it, or the engine, does not combine with it.

    `stage`: of ZeRO. `on_host`: states are. `refused`: options of the framework, as set, that are not served with it.
    """
    if on_host:
        raise job.illegal("training.offload.optimizer", "Muon with reduce scatter does not support optimizer offload: "
                          "offload keeps parts of matrices", "deepspeed 0.19.6 runtime/zero/stage_1_and_2.py:232")
    if stage == 3:
        raise job.illegal("training.optimizer.name", "Muon and reduce scatter cannot be used together, and ZeRO-3 is "
                          "modelled with reduce_scatter alone", "deepspeed 0.19.6 runtime/zero/stage3.py:352")
    if job.scenario.training.optimizer.name != "muon":
        raise job.illegal("training.optimizer.name", f"{job.scenario.training.optimizer.name} is Megatron's", _ENGINE)
    for option in refused:
        raise job.not_yet(f"framework_options.{option.partition(':')[0]}", f"{option} with muon")
    for axis in ("tp", "ep", "cp"):
        if getattr(job.mesh, axis) > 1:
            raise job.not_yet(f"mesh.{axis}", f"muon under {job.scenario.framework} with {axis}")
    kind = job.scenario.training.optimizer.implementation
    job.one_of("training.optimizer.implementation", kind, ("auto", "fused"))
    job.auto("training.optimizer.implementation", kind, "fused", f"{_ENGINE}: FusedAdam of all that is no matrix")
    return Optimizer("muon", "fused")


def momentum_of(compute: str) -> tuple[tuple[str, str, str], ...]:
    """Returns the form of the state of a matrix beside its master: its momentum, in the format of gradients."""
    return tuple((name, compute, "") for name in OPTIMIZERS["muon"].matrix_states)


def held_in_update(shape: tuple[int, int, int]) -> int:
    """Returns the most bytes that the compiled update of a parameter of this shape holds at a time.

    Two copies of it in fp16 and four Gram matrices; the result comes when most of them are gone.
    """
    many, small, large = shape
    return many * (4 * small * large + 8 * small * small)


def product_flops(shape: tuple[int, int, int]) -> int:
    """Returns the FLOPs of the update's products.

    Of a rectangle two Gram matrices and two products with it, and fourteen of small squares; of a square fifteen.
    """
    many, small, large = shape
    if small == large:
        return many * 15 * 2 * small ** 3
    return many * (4 * 2 * small * small * large + 14 * 2 * small ** 3)
