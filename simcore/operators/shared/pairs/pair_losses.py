"""Parts of losses of preferences behind the log-probabilities of tokens: numbers of pairs, and of mean logits."""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["loss_of_pairs", "mean_logits"]


def loss_of_pairs(tape: Tape, losses: Tensor, *others: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of one number a token and of `others`, scalars; backward makes one for each."""
    shapes = [(each.shape, each.dtype) for each in (losses, *others)]

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_log_probs") for shape, dtype in shapes]

    node = tape.node((losses, *others), (), backward)
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes)
    out.node = node
    return out


def mean_logits(tape: Tape, logits: Tensor) -> None:
    """Mean logits of the answers of chosen and of rejected sequences: a copy of each, one after the other."""
    tape.compute(Kernel.ELEMENTWISE, logits.numel, logits.nbytes)  # the entropy
    for _ in range(2):
        _answers = aten.new(tape, (logits.shape[0] // 2 * (logits.shape[1] - 1), logits.shape[2]), logits.dtype,
                            "answers", logits.nbytes // 2)
        tape.compute(Kernel.ELEMENTWISE, _answers.numel, _answers.nbytes)
        del _answers
