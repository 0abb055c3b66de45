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

[Note: odds of chosen sequences]
TRL 1.8.0 `experimental/orpo/orpo_trainer.py` concatenated_forward, in which axolotl's kernels run too: a cross entropy
of chosen sequences, over a copy of their logits where there are several, then the log-probabilities of all.

[Note: log-softmax of logits]
LLaMA-Factory ff6d4d12 `train/dpo/trainer.py` concatenated_forward, `train/trainer_utils.py` get_batch_logps: logits in
fp32 live until the loss is returned, the log-softmax of all positions but the last reads a copy of them, and is kept.
The reference's pass is through the same model with its checkpoints, which keep nothing without a graph. ORPO and SimPO
have no reference. Measured: `tests/truth/probe_preference_llamafactory.py`.

[Note: pairs in fp32]
OpenRLHF 0.11.0 and 0.8.9 `trainer/dpo_trainer.py` concatenated_forward: the policy's pass over all sequences, whose
log-probabilities are of logits in fp32 (`shared/wide_losses.py`), then the reference's, of which only those stay.
Measured: `tests/truth/probe_openrlhf_step.py`.

[Note: fused pairs]
TRL 1.16.0 `trainer/dpo_trainer.py` _compute_loss: the head scores tokens itself (`hf/chunked.py` fused_lm_head), and so
does the reference's, with its own outputs; behind them the loss is of a few numbers a token. Labels of all tokens live
until it is there. Measured: `tests/truth/probe_trl_preference.py`.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, hidden_state, run_backward_of_loss
from simcore.operators.shared.pairs.kto import kto_loss
from simcore.operators.shared.pairs.log_probs import of_copied_rows, of_copied_softmax
from simcore.operators.shared.pairs.pair_losses import loss_of_pairs, mean_logits
from simcore.operators.shared.pairs.whole_pairs import whole_loss
from simcore.operators.shared.wide_losses import scores
from simcore.recording.layer import FUSED_PAIRS, REFERENCED, UNPAIRED, WHOLE_PAIRS, LayerWorkload, RecordedLayer
from simcore.recording.rows import MISMATCHED_REFERENCE, MODEL_END, REFERENCE_BORDER
from simcore.recording.tape import HIDDEN, Kernel, Node, Section, Tape, Tensor

__all__ = ["preference_loss", "rewards_loss"]

_ROWS: Final = ("preference_rows", "preference_rows_alone", "preference_odds")
"""Losses whose log-probabilities read a copy of rows."""
_ODDS: Final = "preference_odds"
_FLASH: Final = "preference_fp32"


def preference_loss(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> RecordedLayer:
    """Recording of the loss of pairs behind the logits of the policy; at its mark the reference model passes.

    `vocab`: entries of a token's logits; `wide`: logits are cast to fp32 behind the head.
    """
    if run.loss in FUSED_PAIRS:
        return _fused_loss(tape, run)
    if run.loss in UNPAIRED:
        return kto_loss(tape, run, vocab, wide=wide)
    if run.loss in WHOLE_PAIRS:
        return whole_loss(tape, run, vocab, wide=wide)
    wide = wide or run.loss not in _ROWS
    tape.mark(MODEL_END)
    logits: Tensor | None = hidden_state(tape, run, run.seq, vocab, run.compute)
    assert logits is not None
    leaf = logits.node
    if wide:
        logits = aten.cast(tape, logits, "fp32")
    likelihood = [_chosen(tape, logits)] if run.loss == _ODDS else []
    losses = _log_probs(tape, run, logits)
    given = _given(tape, run, vocab, wide=wide) if run.loss in REFERENCED else None
    loss = loss_of_pairs(tape, losses, *likelihood)
    if run.loss in _ROWS and run.loss != _ODDS:
        mean_logits(tape, logits)
    del losses, likelihood, given
    logits = None
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, backward, Section(()), tape.cut(), seed)


def _fused_loss(tape: Tape, run: LayerWorkload) -> RecordedLayer:
    """Recording of the loss of what the head has made of each token, see [Note: fused pairs].

    Under no_grad nothing is left of what it has made.
    """
    scores = tape.external((), "fp32", HIDDEN, BEFORE)
    if run.no_grad:
        del scores
        return RecordedLayer(tape.cut(), Section(()))
    scores.node = Node() if run.input_requires_grad else None
    leaf = scores.node
    tape.mark(MODEL_END)
    given: Tensor | None = None
    if run.loss in REFERENCED:
        if run.loss in UNPAIRED:
            tape.mark(MISMATCHED_REFERENCE)
            given = tape.external((), "fp32", HIDDEN, BEFORE)
            del given
        tape.mark(REFERENCE_BORDER)
        given = tape.external((), "fp32", HIDDEN, BEFORE)
    loss = loss_of_pairs(tape, scores)
    del scores, given
    forward = tape.cut()
    seed, undone, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, undone, Section(()), tape.cut(), seed)


def rewards_loss(tape: Tape, run: LayerWorkload) -> RecordedLayer:
    """Recording of the loss of pairs of rewards, each the head's output at the last token of a sequence.

    transformers 5.23 `modeling_layers.py` GenericForSequenceClassification, TRL 1.8.0 `trainer/reward_trainer.py`
    compute_loss: what is kept and made is of one number a token or less.
    """
    values = hidden_state(tape, run, run.seq, 1, run.compute)
    leaf, shape, dtype, size = values.node, values.shape, values.dtype, values.nbytes

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, dtype, "grad_values", size)]

    places = [aten.new(tape, (run.batch, run.seq), "int32", name, 8 * run.tokens) for name in ("is_token", "places")]
    last = aten.new(tape, (run.batch,), "int64", "last_token", places[1].nbytes)
    node = tape.node((values,), (last,), backward)
    rewards = aten.new(tape, (run.batch, 1), dtype, "rewards", size)
    rewards.node = node
    del places, last, values
    tape.mark(MODEL_END)
    loss = loss_of_pairs(tape, rewards)
    del rewards
    forward = tape.cut()
    seed, undone, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, undone, Section(()), tape.cut(), seed)


def _chosen(tape: Tape, logits: Tensor) -> Tensor:
    """Cross entropy, a scalar, of the first half of the sequences, see [Note: odds of chosen sequences]."""
    shape, dtype = logits.shape, logits.dtype
    half = (shape[0] // 2, *shape[1:])
    rows = (half[0], half[1] - 1, half[2])

    def whole(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        _added = aten.new(tape, shape, dtype, "grad_slice")  # in place, to the gradient of all sequences' rows
        tape.compute(Kernel.ELEMENTWISE, _added.numel, 3 * _added.nbytes)
        grads.clear()
        return [None]

    def chosen(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, half, dtype, "grad_slice")]

    first = Tensor(logits.storage, half, dtype, tape.node((logits,), (), whole))
    shifted = Tensor(logits.storage, rows, dtype, tape.node((first,), (), chosen))
    del first
    if half[0] > 1:
        shifted = aten.contiguous(tape, shifted, "chosen_logits")
    labels = aten.new(tape, (rows[0] * rows[1],), "int64", "labels_of_chosen", 8 * rows[0] * rows[1])
    return aten.cross_entropy(tape, shifted.view(rows[0] * rows[1], rows[2]), labels)


def _given(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> Tensor | None:
    """Logits of the reference, which has passed, behind their log-probabilities; None where these alone stay."""
    tape.mark(REFERENCE_BORDER)
    given = tape.external((run.batch, run.seq, vocab), run.compute, HIDDEN, BEFORE)
    if wide:
        given = aten.cast(tape, given, "fp32")
    _log_probs(tape, run, given)
    return None if run.loss == _FLASH else given


def _log_probs(tape: Tape, run: LayerWorkload, logits: Tensor) -> Tensor:
    """Log-probability of the label of each position but the last, [b x (s - 1)]."""
    if run.loss == _FLASH:
        return scores(tape, logits)
    return (of_copied_rows if run.loss in _ROWS else of_copied_softmax)(tape, logits)
