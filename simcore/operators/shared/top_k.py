"""Loss of a student at the entries that its teacher gave: a divergence of log-probabilities over k entries a token.

NeMo RL 7ea279ab `distributed/model_utils.py` get_distillation_topk_logprobs_from_logits, `algorithms/loss/
loss_functions.py` DistillationLossFn, with zero_outside_topk false. Logits are cast to fp32 and gathered at the
teacher's entries, so that only k numbers a token are kept for backward; the gradient of a gather is a tensor of the
logits' size in fp32, zero but there, which is cast to the format of the logits. What has k entries a token is not
counted: of 8,192 tokens and 64 entries 2 MiB each.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["TOP_K", "top_k_loss"]

TOP_K = "top_k"
"""Name of the loss, as `training.loss` has it."""


def top_k_loss(tape: Tape, logits: Tensor) -> Tensor:
    """Loss, a scalar in fp32, of `logits` [..., this rank's part of the vocabulary] in any format."""
    wide = aten.cast(tape, logits, "fp32")
    shape, tokens = wide.shape, wide.numel // wide.shape[-1]

    def backward(tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        return [aten.new(tape, shape, "fp32", "grad_gather")]

    node = tape.node((wide,), (), backward)
    out = aten.new(tape, (), "fp32", "loss", 4 * tokens, Kernel.LOSS)
    out.node = node
    return out
