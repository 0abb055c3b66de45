"""GRPO of TRL before 1.15: logits of a sequence's last tokens, divided by a temperature and scored row by row.

[Note: kept logits] TRL v0.18.0, v0.19.1, v0.24.0, v0.27.2 `trainer/grpo_trainer.py` _get_per_token_logps, from v0.20
_get_per_token_logps_and_entropies. The model is asked for the logits of answers and of one position before
(`logits_to_keep`), under accelerate's mixed precision in fp32; those of answers are divided into a tensor of their own,
which is scored (`log_probs.of_sequences`). From 0.20 on an entropy is made of them without a graph, 128 rows at a time
(`trainer/utils.py` entropy_from_logits). 0.18.0 passes through the reference model within the microbatch, behind the
policy's scores (_compute_loss). What follows is of one number a token. Event for event as torch runs it
(`tests/truth/probe_trl_grpo_older.py`).
"""

from __future__ import annotations

from typing import Final

from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, hidden_state, run_backward_of_loss
from simcore.operators.shared.pairs.log_probs import of_sequences
from simcore.operators.shared.pairs.pair_losses import loss_of_pairs
from simcore.recording.layer import KEPT_ENTROPY, KEPT_ONCE, KEPT_REFERENCED, LayerWorkload, RecordedLayer
from simcore.recording.rows import MODEL_END, REFERENCE_BORDER
from simcore.recording.tape import HIDDEN, Kernel, Section, Tape, Tensor

__all__ = ["kept_loss", "kept_rows"]

_ROWS: Final = 128
"""Rows of a chunk of the entropy (TRL 0.24.0 `trainer/utils.py` entropy_from_logits, chunk_size)."""


def kept_rows(tape: Tape, run: LayerWorkload, hidden: Tensor, *, casts: bool) -> Tensor:
    """Rows of `hidden` [b, s, h] whose logits are asked for, [b, n + 1, h]; their gradient is put into zeros of all.

    Those of several sequences are copied for a weight that trains, for a frozen one they are a batch of products (torch
    2.13 `ATen/native/LinearAlgebra.cpp` should_fold). `casts`: the product casts them, which copies them too.
    """
    shape, dtype, size = hidden.shape, hidden.dtype, hidden.nbytes
    rows = (shape[0], _kept(run), shape[2])

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_hidden", size)]

    view = Tensor(hidden.storage, rows, dtype, tape.node((hidden,), (), backward))
    copied = shape[0] > 1 and rows != shape and run.params["weight"].trainable and not casts
    return aten.contiguous(tape, view, "kept_hidden") if copied else view


def _kept(run: LayerWorkload) -> int:
    """Positions of a sequence whose logits are asked for: `scored` and the one before."""
    return min((run.scored or run.seq - 1) + 1, run.seq)


def kept_loss(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> RecordedLayer:
    """Recording of the loss behind the head's logits, see [Note: kept logits].

    `vocab`: entries of a token's logits; `wide`: logits are cast to fp32 behind the model.
    """
    if run.loss == KEPT_REFERENCED:
        tape.mark(MODEL_END)
    logits = [hidden_state(tape, run, _kept(run), vocab, run.compute)]
    leaf = logits[0].node
    scores = _scored(tape, run, logits, wide=wide)
    if run.loss == KEPT_REFERENCED:
        tape.mark(REFERENCE_BORDER)
        _scored(tape, run, [tape.external((run.batch, _kept(run), vocab), run.compute, HIDDEN, BEFORE)], wide=wide)
    loss = loss_of_pairs(tape, scores)
    del scores
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, backward, Section(()), tape.cut(), seed)


def _scored(tape: Tape, run: LayerWorkload, logits: list[Tensor], *, wide: bool) -> Tensor:
    """Log-probabilities of the labels of answers, of `logits`, [b, n + 1, vocab], which it takes out of the list."""
    if wide:
        logits.append(aten.cast(tape, logits[0], "fp32"))
        del logits[0]
    divided = _divided(tape, logits, once=run.loss == KEPT_ONCE)
    found = of_sequences(tape, divided)
    if run.loss == KEPT_ENTROPY:
        _entropy(tape, divided)
    return found


def _divided(tape: Tape, given: list[Tensor], *, once: bool) -> Tensor:
    """`logits[:, :-1][:, -n:] / temperature`: a new tensor; the gradient passes through zeros of each view's base.

    `once`: without the second of both views, as in 0.19.1.
    """
    logits = given.pop()
    whole, dtype = logits.shape, logits.dtype
    shape, size = (whole[0], whole[1] - 1, whole[2]), logits.nbytes

    def to_whole(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, whole, dtype, "grad_slice", size)]

    def to_most(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_slice", size)]

    def quotient(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_divided", 2 * size)]

    most = Tensor(logits.storage, shape, dtype, tape.node((logits,), (), to_whole))
    del logits
    answers = most if once else Tensor(most.storage, shape, dtype, tape.node((most,), (), to_most))
    del most
    out = aten.new(tape, shape, dtype, "divided_logits", size)
    out.node = tape.node((answers,), (), quotient)
    return out


def _entropy(tape: Tape, logits: Tensor) -> None:
    """Entropies of tokens, without a graph: log-softmax, its exponential and their product of 128 rows at a time.

    A chunk's log-softmax is there until the next one's is.
    """
    count, width = logits.shape[0] * logits.shape[1], logits.shape[2]
    kept: Tensor | None = None
    for first in range(0, count, _ROWS):
        rows = (min(_ROWS, count - first), width)
        size = logits.nbytes * rows[0] // count
        softmax = aten.new(tape, rows, logits.dtype, "log_softmax", size, Kernel.LOSS)
        kept = softmax
        del softmax
        _made = [aten.new(tape, rows, logits.dtype, name, moved) for name, moved in (("shares", size),
                                                                                     ("weighed", 2 * size))]
        tape.compute(Kernel.ELEMENTWISE, rows[0] * width, size)
        del _made
    del kept
