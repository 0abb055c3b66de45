"""Modules of a layer, as the code around this package runs them: norms, linear layers with their adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["Modules"]


@dataclass(frozen=True, slots=True)
class Modules:
    """Surroundings of a layer's operators. `linear`, `norm`: output of the module at a path.

    `param`: a parameter by name; `by_kernels`: TileLang's kernels run; `kept`: makes what a checkpoint keeps by name.
    """

    tape: Tape
    run: LayerWorkload
    linear: Callable[[Tensor, str], Tensor]
    norm: Callable[[Tensor, str], Tensor]
    param: Callable[[str], Param]
    by_kernels: bool
    kept: Callable[[str, Callable[[], tuple[Tensor, ...]]], tuple[Tensor, ...]]
