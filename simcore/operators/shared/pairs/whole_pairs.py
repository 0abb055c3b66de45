"""DPO of TRL 0.24.0: whole logits, of which rows are scored one by one, and the outputs of all layers.

[Note: whole pairs] TRL v0.24.0 `trainer/dpo_trainer.py` concatenated_forward asks the model for `output_hidden_states`,
and keeps what it returns until log-probabilities and mean logits are there; so for the reference. Under accelerate's
mixed precision all of it is copied in fp32 (1.15.0 `utils/operations.py` convert_outputs_to_fp32).
All positions are scored (`log_probs.of_sequences`), the last one too. Measured: `tests/truth/probe_trl_pairs.py`.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import BEFORE, hidden_state, run_backward_of_loss
from simcore.operators.shared.pairs.log_probs import of_sequences
from simcore.operators.shared.pairs.pair_losses import loss_of_pairs, mean_logits
from simcore.recording.layer import REFERENCED, LayerWorkload, RecordedLayer
from simcore.recording.rows import MODEL_END, OUTPUTS_COPIED, OUTPUTS_DROPPED, REFERENCE_BORDER
from simcore.recording.tape import HIDDEN, Section, Tape, Tensor

__all__ = ["whole_loss"]


def whole_loss(tape: Tape, run: LayerWorkload, vocab: int, *, wide: bool) -> RecordedLayer:
    """Recording of the loss of pairs behind the logits of the policy, see [Note: whole pairs]."""
    tape.mark(MODEL_END)
    logits: Tensor | None = hidden_state(tape, run, run.seq, vocab, run.compute)
    assert logits is not None
    leaf = logits.node
    logits, scores = _scored(tape, logits, wide=wide), None
    scores = of_sequences(tape, logits)
    mean_logits(tape, logits)
    tape.mark(OUTPUTS_DROPPED)
    logits = None
    if run.loss in REFERENCED:
        tape.mark(REFERENCE_BORDER)
        given: Tensor | None = tape.external((run.batch, run.seq, vocab), run.compute, HIDDEN, BEFORE)
        assert given is not None
        given = _scored(tape, given, wide=wide)
        of_sequences(tape, given)
        mean_logits(tape, given)
        tape.mark(OUTPUTS_DROPPED)
        given = None
    loss = loss_of_pairs(tape, scores)
    del scores
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss
    return RecordedLayer(forward, backward, Section(()), tape.cut(), seed)


def _scored(tape: Tape, logits: Tensor, *, wide: bool) -> Tensor:
    """Logits as they are scored; with them the outputs of all layers are copied."""
    if not wide:
        return logits
    found = aten.cast(tape, logits, "fp32")
    tape.mark(OUTPUTS_COPIED)
    return found
