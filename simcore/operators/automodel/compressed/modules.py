"""Modules of a layer, as the code around this package runs them: norms, linear layers with their adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simcore.recording.inner_units import marks_of
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Backward, Param, Tape, Tensor

__all__ = ["Modules"]


@dataclass(frozen=True, slots=True)
class Modules:
    """Surroundings of a layer's operators. `linear`, `norm`: output of the module at a path.

    `param`: a parameter by name; `by_kernels`: TileLang's kernels run; `kept`: makes what a checkpoint keeps by name.
    `units`: modules with parameters in fp32 are data-parallel units of their own; `agrees`: over their one mesh axis
    ranks agree whether a layer has a compressed key.
    """

    tape: Tape
    run: LayerWorkload
    linear: Callable[[Tensor, str], Tensor]
    norm: Callable[[Tensor, str], Tensor]
    param: Callable[[str], Param]
    by_kernels: bool
    kept: Callable[[str, Callable[[], tuple[Tensor, ...]]], tuple[Tensor, ...]]
    units: bool
    agrees: bool

    def inside(self, module: str, x: Tensor, run: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
        """Outputs of `run(x)`, the module at a path, with the hooks of its unit around it, if it is one."""
        if not self.units:
            return run(x)
        begin, end, back, last = marks_of(module)
        self.tape.mark(begin)
        given = Tensor(x.storage, x.shape, x.dtype, self.tape.node((x,), (), _marked(last, 1)))
        made = run(given)
        node = self.tape.node(made, (), _marked(back, len(made)))
        self.tape.mark(end)
        return [Tensor(out.storage, out.shape, out.dtype, node, place) for place, out in enumerate(made)]


def _marked(mark: int, count: int) -> Backward:
    """Backward function that passes gradients of `count` tensors on behind a mark."""
    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        tape.mark(mark)
        return [*grads, *[None] * (count - len(grads))]

    return backward
