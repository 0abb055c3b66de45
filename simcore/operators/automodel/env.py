"""Surroundings of the operators of one layer: its tape, parameters, options, and a checkpoint's cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simcore.operators.automodel.options import AutomodelOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["Env"]


@dataclass(slots=True)
class Env:
    """Surroundings of every operator of one layer. `cache`: results that a checkpoint keeps, None outside one."""

    tape: Tape
    run: LayerWorkload
    options: AutomodelOptions
    cache: dict[str, tuple[Tensor, ...]] | None = None

    def param(self, name: str) -> Param:
        """A parameter by its name in the layer."""
        return self.run.params[name]

    def adapters(self, path: str) -> tuple[Param, Param] | None:
        """The two matrices of an adapted linear layer."""
        a = self.run.params.get(f"{path}.lora_A.weight")
        return (a, self.run.params[f"{path}.lora_B.weight"]) if a is not None else None

    def kept(self, name: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """`make()`, but a checkpoint that must save it takes it from its cache in the recomputation."""
        if self.cache is None:
            return make()
        if self.tape.phase == "recompute":
            return self.cache.pop(name)
        made = make()
        self.cache[name] = tuple(t.detach() for t in made)
        return made
