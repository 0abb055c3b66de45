"""Cross entropy."""

from __future__ import annotations

from simcore.operators.shared.aten.kernels import new
from simcore.operators.shared.aten.reduction import log_softmax
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["cross_entropy"]


def cross_entropy(tape: Tape, logits: Tensor, target: Tensor, *, each: bool = False) -> Tensor:
    """`F.cross_entropy(logits, target)` of [n, vocab]: log-softmax, then the mean over targets.

    Returns the loss, a scalar; with `each` (reduction="none") the losses [n].
    """
    shape, dtype = logits.shape, logits.dtype
    log_probabilities = log_softmax(tape, logits)
    node = tape.node((log_probabilities,), (log_probabilities, target),
                     lambda tape, grads, saved: [new(tape, shape, dtype, "grad_nll_loss", kernel=Kernel.LOSS)])
    loss = new(tape, shape[:1] if each else (), dtype, "loss", target.nbytes, Kernel.LOSS)
    total_weight = tape.empty((), dtype, "total_weight")
    tape.save(node, total_weight)
    loss.node = node
    return loss
