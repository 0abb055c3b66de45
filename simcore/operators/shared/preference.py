"""Losses of preferences: chosen and rejected sequences in one batch, scored against a reference model in between.

[Note: the reference's pass]
TRL 1.8.0 `trainer/dpo_trainer.py` _compute_loss: the policy's forward, its log-probabilities, the reference's forward
under no_grad, its log-probabilities, metrics; logits of both live until the loss is returned. With adapters the
reference is the model with its adapters off, checkpoints are off in its pass. Backward of the loss itself is of one
number a token. A row is counted as if all of its tokens but the first were an answer.

[Note: rows of logits]
axolotl 067b021c `loaders/patch_manager.py` _apply_trl_trainer_utils_patches puts Triton's kernels in the place of TRL's
two functions (`monkeypatch/trainer/utils.py`): the log-probability of labels reads a copy of all positions but the last
(of several sequences they are no view of rows), which it keeps for backward; the entropy copies nothing. Under
accelerate's mixed precision logits come out in fp32 (1.15.0 `utils/operations.py` convert_outputs_to_fp32). Measured:
`tests/truth/probe_preference.py`.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, hidden_state, run_backward_of_loss
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import REFERENCE_BORDER
from simcore.recording.tape import HIDDEN, Kernel, Section, Tape, Tensor

__all__ = ["preference_loss"]


def preference_loss(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> RecordedLayer:
    """Recording of the loss of pairs behind the logits of the policy; at its mark the reference model passes.

    `vocab`: entries of a token's logits; `wide`: logits are cast to fp32 behind the head.
    """
    logits: Tensor | None = hidden_state(tape, run, run.seq, vocab, run.compute)
    assert logits is not None
    leaf = logits.node
    if wide:
        logits = aten.cast(tape, logits, "fp32")
    losses = _log_probs(tape, logits)
    tape.mark(REFERENCE_BORDER)
    given: Tensor | None = tape.external((run.batch, run.seq, vocab), run.compute, HIDDEN, BEFORE)
    assert given is not None
    if wide:
        given = aten.cast(tape, given, "fp32")
    _scores = _log_probs(tape, given)
    loss = _of_pairs(tape, losses)
    del losses, _scores
    _metrics(tape, logits)
    given = logits = None
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, backward, Section(()), tape.cut(), seed)


def _log_probs(tape: Tape, logits: Tensor) -> Tensor:
    """Log-probability of the label of each position but the last, [b x (s - 1)], see [Note: rows of logits]."""
    shape, dtype = logits.shape, logits.dtype
    rows = (shape[0] * (shape[1] - 1), shape[2])

    def whole(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_slice", copied)]

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, rows, dtype, "grad_rows", copied, Kernel.LOSS)]

    sliced = tape.node((logits,), (), whole)
    answers = aten.new(tape, rows, dtype, "logits_of_answers", logits.nbytes, Kernel.COPY)
    answers.node, copied = sliced, answers.nbytes
    labels = aten.new(tape, rows[:1], "int64", "labels_of_answers", 8 * rows[0])
    node = tape.node((answers,), (answers, labels), backward)
    found = aten.new(tape, rows[:1], "fp32", "log_probs", copied, Kernel.LOSS)
    lse = aten.new(tape, rows[:1], "fp32", "log_sum_exp")
    tape.save(node, lse)
    del answers, labels, lse
    if dtype != "fp32":
        found = aten.cast(tape, found, dtype)
    found.node = node
    return found


def _of_pairs(tape: Tape, losses: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of one number a token; backward makes one for each."""
    shape, dtype = losses.shape, losses.dtype

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_log_probs")]

    node = tape.node((losses,), (), backward)
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes)
    out.node = node
    return out


def _metrics(tape: Tape, logits: Tensor) -> None:
    """Mean logits of the answers of chosen and of rejected sequences: a copy of each, one after the other."""
    tape.compute(Kernel.ELEMENTWISE, logits.numel, logits.nbytes)  # the entropy
    for _ in range(2):
        _answers = aten.new(tape, (logits.shape[0] // 2 * (logits.shape[1] - 1), logits.shape[2]), logits.dtype,
                            "answers", logits.nbytes // 2)
        tape.compute(Kernel.ELEMENTWISE, _answers.numel, _answers.nbytes)
        del _answers
