"""Experts whose width is split over tp, as transformers 5.23 has them: sums in the place of what is summed.

`distributed/tensor_parallel.py`, MoeExpertsParallel; `distributed/parallel_utils.py`, _AllReduceForward and
_AllReduceBackward, which call torch's all_reduce on the tensor itself and keep nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["by_width"]

Experts = Callable[[Tensor, Tensor], Tensor]
"""(rows [tokens, hidden], weights of the chosen [tokens, top_k]) -> this rank's summand of the output."""


def by_width(tape: Tape, run: LayerWorkload, hidden: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """Output [tokens, hidden] of `experts` for rows `hidden` and `weights`, summed over tp; as it is if tp is 1.

    Backward sums the gradients of both, of which each rank has made a part.
    """
    if run.tp == 1:
        return experts(hidden, weights)
    out = experts(_summed_backward(tape, hidden), _summed_backward(tape, weights))
    tape.collective("all_reduce", "tp", out.nbytes, out.dtype)
    out.node = tape.node((out,), (), lambda tape, grads, saved: list(grads))
    return out


def _summed_backward(tape: Tape, x: Tensor) -> Tensor:
    """View of `x` whose gradient is summed over tp in its place."""
    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        (grad,) = grads
        if grad is not None:
            tape.collective("all_reduce", "tp", grad.nbytes, grad.dtype)
        return [grads.pop()]

    return Tensor(x.storage, x.shape, x.dtype, tape.node((x,), (), backward))
