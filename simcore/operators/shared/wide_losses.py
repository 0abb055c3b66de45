"""Losses of OpenRLHF's trainers: flash-attn's cross entropy of logits that its actor casts to fp32.

[Note: logits in fp32]
OpenRLHF 0.11.0 and 0.8.9 `models/actor.py` forward, `models/utils.py` log_probs_from_logits: the model's output gets
logits in fp32 in the place of its own, all tokens of a row are scored, and the gradient is a tensor of its own
(flash-attn 2.8 `ops/triton/cross_entropy.py`). A temperature divides them in place, so that backward makes a quotient
of the gradient. The entropy, which is compiled, keeps logits and makes one gradient, behind the cross entropy's; the
sum of both is a third tensor for a moment. `trainer/ray/ppo_actor.py` training_step holds the output until it returns.
Measured: `tests/truth/probe_openrlhf_step.py`.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.shared import aten
from simcore.operators.shared.layer_borders import held_logits, hidden_state, hold_logits, run_backward_of_loss
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Backward, Kernel, Node, Tape, Tensor

__all__ = ["POLICY", "WIDE", "policy_loss", "scores", "sum_of_rows", "wide_loss"]

WIDE: Final = "flash_fp32"
"""Loss of OpenRLHF's supervised trainer."""
_ENTROPY, _DIVIDED = "policy_fp32_entropy", "policy_fp32_divided"
POLICY: Final = ("policy_fp32", _DIVIDED, _ENTROPY)
"""Losses of its actor: at a temperature of 1; at another one; with an entropy in the loss."""


def wide_loss(tape: Tape, vocab: int, run: LayerWorkload) -> RecordedLayer:
    """Recording of flash-attn's cross entropy of logits in fp32, which the loop holds until the next step has its own.

    OpenRLHF 0.11.0 `models/actor.py` forward, `models/utils.py` log_probs_from_logits, `trainer/sft_trainer.py` fit:
    the model's output gets logits in fp32 in the place of its own, all tokens of a row are scored, and the output is
    dropped where the next one is named. The gradient is a tensor of its own (flash-attn 2.8 `ops/triton/
    cross_entropy.py`; `tests/truth/probe_openrlhf.py`).
    """
    rest, held = held_logits(tape, run, vocab, "fp32")
    logits = hidden_state(tape, run, run.seq, vocab, run.compute)
    leaf, wide = logits.node, aten.cast(tape, logits, "fp32")
    del logits
    loss = scores(tape, wide)
    del held
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss, wide
    hold_logits(tape, run, vocab, "fp32")
    return RecordedLayer(forward, backward, late=tape.cut(), seed=seed, rest=rest)


def policy_loss(tape: Tape, vocab: int, run: LayerWorkload) -> RecordedLayer:
    """Recording of the loss of a policy, see [Note: logits in fp32]; logits are held until backward is over."""
    logits = hidden_state(tape, run, run.seq, vocab, run.compute)
    leaf, wide = logits.node, aten.cast(tape, logits, "fp32")
    del logits
    scored = wide
    if run.loss == _DIVIDED:
        scored = Tensor(wide.storage, wide.shape, wide.dtype, tape.node((wide,), (), _quotient(wide)))
        tape.compute(Kernel.ELEMENTWISE, wide.numel, 2 * wide.nbytes)
    loss = scores(tape, scored, has_entropy=run.loss == _ENTROPY)
    del scored
    forward = tape.cut()
    seed, backward, ones = run_backward_of_loss(tape, loss, leaf)
    del ones, loss, wide
    return RecordedLayer(forward, backward, late=tape.cut(), seed=seed)


def _quotient(wide: Tensor) -> Backward:
    """Backward of a division in place of logits that are as `wide`."""
    shape, size = wide.shape, wide.nbytes

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, "fp32", "grad_divided", 2 * size)]
    return backward


def scores(tape: Tape, logits: Tensor, *, has_entropy: bool = False) -> Tensor:
    """Mean of the cross entropies of all rows of `logits`, whose gradient is a tensor of its own.

    `has_entropy`: that of an entropy is added to it.
    """
    shape, size, rows = logits.shape, logits.nbytes, logits.numel // logits.shape[-1]

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        made = aten.new(tape, shape, "fp32", "grad_logits", 2 * size, Kernel.LOSS)
        if has_entropy:
            _other = aten.new(tape, shape, "fp32", "grad_of_entropy", 2 * size)
            made = aten.new(tape, shape, "fp32", "grad_sum", 3 * size)
        saved.clear()
        return [made]

    if has_entropy:
        tape.compute(Kernel.ELEMENTWISE, size, size)

    node = tape.node((logits,), (logits,), backward)
    return sum_of_rows(tape, node, rows, size)


def sum_of_rows(tape: Tape, node: Node | None, rows: int, size: int) -> Tensor:
    """Sum of the losses of `rows` rows of logits, of `size` bytes, which flash-attn's kernel makes for `node`."""
    lse = aten.new(tape, (rows,), "fp32", "log_sum_exp")
    losses = aten.new(tape, (rows,), "fp32", "losses", size, Kernel.LOSS)
    tape.save(node, lse)
    out = aten.new(tape, (), "fp32", "loss", losses.nbytes, Kernel.LOSS)
    out.node = node
    return out
