"""Losses of KTO: sequences that are wanted or not, beside completions of other prompts whose scores bound the loss.

[Note: mismatched completions] TRL 1.16.0, 1.8.0 and 0.24.0 `trainer/kto_trainer.py` _compute_kl_logps: the policy
passes without a graph over completions of other prompts, ahead of its forward; so does the reference ahead of its own.
LLaMA-Factory ff6d4d12 `train/kto/trainer.py` concatenated_forward: each behind its own. What is left of such a pass is
a number a sequence. They are counted as long as the sequences themselves.

[Note: four ways] `kto_fused`: TRL 1.16.0, whose head scores tokens itself. `kto_whole`: TRL 0.24.0 forward: rows of
whole logits but the last position (`trainer/utils.py` selective_log_softmax); logits of wanted and of unwanted
sequences are copied, and the policy's copies live until the loss is there. `kto_rows`: TRL 1.8.0 with axolotl's
kernels of log-probabilities: a copy of rows, and copies of the policy's logits as before; the logits themselves live
until the loss is there. `kto_softmax`: LLaMA-Factory: logits in fp32, their log-softmax, and copies of them. All
sequences are counted in one copy. Measured: `tests/truth/probe_kto.py`, `tests/truth/probe_kto_llamafactory.py`.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, hidden_state, run_backward_of_loss
from simcore.operators.shared.pairs.log_probs import of_copied_rows, of_copied_softmax, of_sequences
from simcore.operators.shared.pairs.pair_losses import loss_of_pairs
from simcore.recording.layer import AHEAD, REFERENCED, LayerWorkload, RecordedLayer
from simcore.recording.rows import MISMATCHED_BORDER, MISMATCHED_REFERENCE, MODEL_END, REFERENCE_BORDER
from simcore.recording.tape import HIDDEN, Kernel, Section, Tape, Tensor

__all__ = ["kto_loss"]

_ROWS: Final = "kto_rows"
_SOFTMAX: Final = "kto_softmax"


def kto_loss(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> RecordedLayer:
    """Recording of the loss of logits, see [Note: four ways]; under no_grad of the scores of mismatched completions.

    `vocab`: entries of a token's logits; `wide`: logits are cast to fp32 behind the head.
    """
    wide = wide or run.loss == _SOFTMAX
    if run.no_grad:
        _given(tape, run, vocab, wide=wide)
        return RecordedLayer(tape.cut(), Section(()))
    tape.mark(MODEL_END)
    logits: Tensor | None = hidden_state(tape, run, run.seq, vocab, run.compute)
    assert logits is not None
    leaf = logits.node
    if wide:
        logits = aten.cast(tape, logits, "fp32")
    scores = _log_probs(tape, run, logits)
    if run.loss not in AHEAD:
        tape.mark(MISMATCHED_BORDER)
        _given(tape, run, vocab, wide=wide)
    copies = _copied(tape, logits)
    outputs = [logits] if run.loss == _ROWS else []
    logits = None
    if run.loss in REFERENCED:
        outputs += _of_reference(tape, run, vocab, wide=wide)
    loss = loss_of_pairs(tape, scores)
    del scores, copies, outputs
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, backward, Section(()), tape.cut(), seed)


def _of_reference(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> list[Tensor]:
    """Passes of the reference, the mismatched one first or last; returns logits that live on."""
    behind = run.loss not in AHEAD
    if not behind:
        tape.mark(MISMATCHED_REFERENCE)
        _given(tape, run, vocab, wide=wide)
    tape.mark(REFERENCE_BORDER)
    given = _given(tape, run, vocab, wide=wide)
    if behind:
        tape.mark(MISMATCHED_REFERENCE)
        _given(tape, run, vocab, wide=wide)
    if run.loss == _ROWS:
        return [given]
    copies = _copied(tape, given)
    del given, copies
    return []


def _given(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> Tensor:
    """Logits of a pass without a graph, behind their log-probabilities."""
    given = tape.external((run.batch, run.seq, vocab), run.compute, HIDDEN, BEFORE)
    if wide:
        given = aten.cast(tape, given, "fp32")
    _log_probs(tape, run, given)
    return given


def _log_probs(tape: Tape, run: LayerWorkload, logits: Tensor) -> Tensor:
    """Log-probability of the label of each position but the last."""
    if run.loss == _ROWS:
        return of_copied_rows(tape, logits)
    return (of_copied_softmax if run.loss == _SOFTMAX else _of_sliced)(tape, logits)


def _of_sliced(tape: Tape, logits: Tensor) -> Tensor:
    """Those of a view of all positions but the last, sequence by sequence."""
    shape, dtype = logits.shape, logits.dtype

    def whole(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_slice", size)]

    size = logits.nbytes
    node = tape.node((logits,), (), whole)
    return of_sequences(tape, Tensor(logits.storage, (shape[0], shape[1] - 1, shape[2]), dtype, node))


def _copied(tape: Tape, logits: Tensor) -> Tensor:
    """Copies of the logits of wanted and of unwanted sequences, through which no gradient comes."""
    return aten.new(tape, logits.shape, logits.dtype, "logits_by_label", logits.nbytes, Kernel.COPY)
