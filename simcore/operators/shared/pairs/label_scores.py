"""Log-probabilities of labels behind whole logits, sequence by sequence, as TRL makes them.

[Note: selective_log_softmax] TRL v0.18.0 to v0.27.2 `trainer/utils.py`: in fp32 a log-sum-exp of each sequence, whose
backward reads the logits; in 16 bits a log-softmax of each, which is kept.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Node, Tape, Tensor

__all__ = ["log_probs"]


def log_probs(tape: Tape, logits: Tensor) -> Tensor:
    """Log-probability of the label of each position, [b x s]."""
    return (_of_sums if logits.dtype == "fp32" else _of_softmax)(tape, logits)


def _of_sums(tape: Tape, logits: Tensor) -> Tensor:
    """Those of logits in fp32: the label's logit less the log-sum-exp, sequence by sequence."""
    shape, count, dtype = logits.shape, logits.shape[0] * logits.shape[1], logits.dtype

    def gathered(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        _added = aten.new(tape, shape, dtype, "grad_gather")  # in place, to the gradient of all sequences
        tape.compute(Kernel.ELEMENTWISE, _added.numel, 3 * _added.nbytes)
        del _added
        grads.clear()
        return [None]

    def summed(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        less = aten.new(tape, shape[1:], dtype, "logits_less_sum", row)
        powers = aten.new(tape, shape[1:], dtype, "shares", row)
        made = aten.new(tape, shape[1:], dtype, "grad_row", 2 * row, Kernel.LOSS)
        del less, powers
        return [made]

    labels = aten.new(tape, (count,), "int64", "labels_of_answers", 8 * count)
    chosen = aten.new(tape, (count,), dtype, "logits_of_labels", 16 * count)
    chosen.node = tape.node((logits,), (logits, labels), gathered)
    row, unbound, sums = logits.nbytes // shape[0], _unbound(tape, logits), list[Tensor]()
    for number in range(shape[0]):
        view = Tensor(logits.storage, shape[1:], dtype, unbound, number)
        node = tape.node((view,), (view,), summed)
        _powers = aten.new(tape, shape[1:], dtype, "powers", row, Kernel.LOSS)
        del _powers
        sums.append(aten.new(tape, (shape[1],), dtype, "log_sum_exp", row))
        tape.save(node, sums[-1])
        sums[-1].node = node
    return _difference(tape, chosen, sums)


def _of_softmax(tape: Tape, logits: Tensor) -> Tensor:
    """Those of logits in 16 bits: the label's entry of a log-softmax, sequence by sequence."""
    shape, dtype = logits.shape, logits.dtype

    def gathered(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape[1:], dtype, "grad_gather")]

    def undone(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape[1:], dtype, "grad_row", 2 * row, Kernel.LOSS)]

    row, unbound, scores = logits.nbytes // shape[0], _unbound(tape, logits), list[Tensor]()
    for number in range(shape[0]):
        view = Tensor(logits.storage, shape[1:], dtype, unbound, number)
        node = tape.node((view,), (), undone)
        softmax = aten.new(tape, shape[1:], dtype, "log_softmax", row, Kernel.LOSS)
        tape.save(node, softmax)
        softmax.node = node
        labels = aten.new(tape, (shape[1],), "int64", "labels_of_answers", 8 * shape[1])
        taken = tape.node((softmax,), (labels,), gathered)
        scores.append(aten.new(tape, (shape[1],), dtype, "log_probs", 16 * shape[1]))
        scores[-1].node = taken
    del softmax, labels
    return _difference(tape, None, scores)


def _unbound(tape: Tape, logits: Tensor) -> Node | None:
    """Node of the sequences of logits as views, whose gradients are put together when all are there."""
    shape, dtype, size = logits.shape, logits.dtype, logits.nbytes

    def stacked(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_rows", size, Kernel.COPY)]

    return tape.node((logits,), (), stacked)


def _difference(tape: Tape, chosen: Tensor | None, parts: list[Tensor]) -> Tensor:
    """One number a token of those of each sequence, and of what was chosen of all."""
    shape, dtype = parts[0].shape, parts[0].dtype
    given = [*([] if chosen is None else [chosen]), *parts]
    count = len(given)

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_log_probs") for _ in range(count)]

    node = tape.node(tuple(given), (), backward)
    out = aten.new(tape, (len(parts) * shape[0],), dtype, "log_probs")
    out.node = node
    given.clear()
    return out
