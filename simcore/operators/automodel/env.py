"""Surroundings of the operators of one layer: its tape, parameters, options, and a checkpoint's cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simcore.operators.automodel.options import AutomodelOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import Scaling
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["Env"]


@dataclass(slots=True)
class Env:
    """Things that every operator of one recorded layer needs: its tape, workload and options.

    `held`: tensors that the decoder layer holds until it returns. `cache`: results that a checkpoint keeps for its
    replay, by name; None outside such a checkpoint. `fp8`: the layer's products by TransformerEngine are in 8 bits.
    `begins`, `ends`: the first and the last of several runs of the same layer.
    """

    tape: Tape
    run: LayerWorkload
    options: AutomodelOptions
    cache: dict[str, tuple[Tensor, ...]] | None = None
    held: list[Tensor] = field(default_factory=list)
    fp8: bool = False
    begins: bool = True
    ends: bool = True

    @property
    def scaling(self) -> Scaling:
        """Recipe of products in 8 bits."""
        return Scaling(self.options.fp8_recipe, self.options.fp8_transposes)

    def param(self, name: str) -> Param:
        """Parameter with the given name, relative to the layer. Raises KeyError if the layer has none."""
        return self.run.params[name]

    def adapters(self, path: str) -> tuple[Param, Param] | None:
        """LoRA matrices (A, B) of the linear layer at `path`; None if it has no adapter."""
        a = self.run.params.get(f"{path}.lora_A.weight")
        return (a, self.run.params[f"{path}.lora_B.weight"]) if a is not None else None

    def kept(self, name: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Result of `make()`; in the replay of a checkpoint that keeps it, the result of the first run.

        `name`: key under which the checkpoint keeps it. Outside such a checkpoint nothing is kept.
        """
        if self.cache is None:
            return make()
        if self.tape.phase == "recompute":
            return self.cache.pop(name)
        made = make()
        self.cache[name] = tuple(t.detach() for t in made)
        return made
