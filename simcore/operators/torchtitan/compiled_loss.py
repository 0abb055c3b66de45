"""torchtitan's loss under torch.compile (0.2.2 `components/loss.py`), as Inductor's code has it."""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["cross_entropy"]


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Compiled loss, a scalar in fp32, over bf16 `logits` [b, s, v].

    For backward it saves the logits and, in fp32, the largest logit and the logarithm of each row. No copy in fp32 is
    written, backward writes the gradient in the logits' own type.
    """
    shape, dtype, moved = logits.shape, logits.dtype, logits.nbytes
    column = (*shape[:-1], 1)
    node = tape.node((logits,), (logits,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_logits", moved, Kernel.LOSS)])
    highest = aten.new(tape, column, "fp32", "max", moved, Kernel.LOSS)
    logarithm = aten.new(tape, column, "fp32", "log", moved, Kernel.LOSS)
    tape.save(node, highest, logarithm)
    loss = aten.new(tape, (), "fp32", "loss", kernel=Kernel.LOSS)
    loss.node = node
    return loss
