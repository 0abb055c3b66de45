"""torchtitan's loss (0.2.2 `components/loss.py`): cross entropy over flattened fp32 logits, added up, then divided.

With the vocabulary split over tp it is PyTorch's loss parallel (torch 2.13 `distributed/tensor/parallel/loss.py`),
operator by operator as it was measured.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import summed
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["cross_entropy", "parallel_cross_entropy"]

Grads = list[Tensor | None]


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Cross entropy, a scalar, of `logits` [..., vocabulary], the whole vocabulary, in fp32.

    The data loader has allocated the labels.
    """
    rows, vocab = logits.numel // logits.shape[-1], logits.shape[-1]
    return aten.cross_entropy(tape, aten.cast(tape, logits.view(rows, vocab), "fp32"), Tensor(None, (rows,), "int64"))


def parallel_cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Cross entropy, a scalar, of `logits` [..., this rank's part of the vocabulary], in fp32.

    For backward it saves the log-probabilities of that part; maxima, sums and target logits are all-reduced over tp.
    """
    rows, vocab = logits.numel // logits.shape[-1], logits.shape[-1]
    logits = aten.cast(tape, logits.view(rows, vocab), "fp32")
    log_probabilities = _log_softmax(tape, logits.detach())
    loss, total_weight = _likelihood(tape, rows)
    loss.node = tape.node((logits,), (log_probabilities, total_weight), lambda tape, grads, saved: [
        _gradient(tape, rows, vocab)])
    return loss


def _log_softmax(tape: Tape, x: Tensor) -> Tensor:
    column = (x.shape[0], 1)
    highest = summed(tape, _small(tape, column, "fp32", "max", x.nbytes), "max")
    shifted = _like(tape, x, "shifted")
    total = summed(tape, _sum_of_exp(tape, shifted), "sum")
    _logarithm = _small(tape, column, "fp32", "log")
    out = _like(tape, shifted, "log_probabilities")
    del highest, total
    return out


def _sum_of_exp(tape: Tape, shifted: Tensor) -> Tensor:
    exponential = _like(tape, shifted, "exp")
    return _small(tape, (shifted.shape[0], 1), "fp32", "sum", exponential.nbytes)


def _likelihood(tape: Tape, rows: int) -> tuple[Tensor, Tensor]:
    """The loss and the weight of all targets."""
    _targets = _valid(tape, rows, "int64", "targets")
    outside = _outside(tape, rows)
    _shifted = shifted_indices(tape, (rows,))
    _picked = _small(tape, (rows,), "fp32", "gather")
    del outside
    _everywhere = summed(tape, _picked, "gather")
    each = _valid_of(tape, _small(tape, (rows,), "fp32", "neg"))
    weight = _total_weight(tape, rows)
    return _small(tape, (), "fp32", "loss", each.nbytes), weight


def _valid(tape: Tape, rows: int, dtype: str, name: str) -> Tensor:
    """`where(target != ignored, x, 0)`."""
    _mask = _small(tape, (rows,), "int8", "mask")
    return _small(tape, (rows,), dtype, name)


def _valid_of(tape: Tape, x: Tensor) -> Tensor:
    return _valid(tape, x.shape[0], x.dtype, "likelihood")


def _outside(tape: Tape, rows: int) -> Tensor:
    """Mask [rows] of the targets that lie in another rank's part of the vocabulary."""
    low, high = _small(tape, (rows,), "int8", "mask"), _small(tape, (rows,), "int8", "mask")
    out = _small(tape, (rows,), "int8", "mask")
    del low, high
    return out


def shifted_indices(tape: Tape, shape: tuple[int, ...]) -> Tensor:
    """int64 tensor of the given shape: token ids as indices into this rank's part of the vocabulary."""
    _copy = _small(tape, shape, "int64", "indices")
    return _small(tape, shape, "int64", "indices")


def _total_weight(tape: Tape, rows: int) -> Tensor:
    _count = _counted(tape, rows)
    return _small(tape, (), "fp32", "total_weight")


def _counted(tape: Tape, rows: int) -> Tensor:
    _mask = _small(tape, (rows,), "int8", "mask")
    return _small(tape, (), "int64", "count")


def _gradient(tape: Tape, rows: int, vocab: int) -> Tensor:
    """(one-hot + softmax) times the gradient of each row."""
    _targets = _valid(tape, rows, "int64", "targets")
    one_hot = aten.new(tape, (rows, vocab), "fp32", "one_hot")
    _mask = _outside(tape, rows)
    _indices = shifted_indices(tape, (rows,))
    _update = _updates(tape, rows)
    _row_numbers = _small(tape, (rows,), "int64", "arange")
    _each = _valid(tape, rows, "fp32", "grad")
    return _like(tape, _plus_softmax(tape, one_hot), "grad_log_softmax")


def _updates(tape: Tape, rows: int) -> Tensor:
    _cast = _small(tape, (rows,), "fp32", "update")
    return _small(tape, (rows,), "fp32", "update")


def _plus_softmax(tape: Tape, one_hot: Tensor) -> Tensor:
    softmax = _like(tape, one_hot, "softmax")
    return aten.new(tape, one_hot.shape, "fp32", "grad_sum", one_hot.nbytes + softmax.nbytes)


def _like(tape: Tape, x: Tensor, name: str) -> Tensor:
    return aten.new(tape, x.shape, x.dtype, name, x.nbytes, Kernel.LOSS)


def _small(tape: Tape, shape: tuple[int, ...], dtype: str, name: str, moved: int = 0) -> Tensor:
    return aten.new(tape, shape, dtype, name, moved, Kernel.LOSS)
