"""The choice among all experts at once by a sigmoid (transformers 5.23 `models/minimax_m2`)."""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.shared import aten
from simcore.recording.tape import Tape, Tensor

__all__ = ["chosen_at_once"]


def chosen_at_once(tape: Tape, block: Moe, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (weights, indices) of the experts with the largest scores, each [tokens, top_k]; weights sum to one.

    Scores are fp32; a buffer is added to them for the choice.
    """
    scores = aten.sigmoid(tape, aten.cast(tape, logits, "fp32"))
    choice = aten.add_scalar(tape, scores, dtype="fp32")
    _values, indices = aten.topk(tape, choice, block.top_k)
    weights = aten.gather(tape, scores, indices)
    aten.div_(tape, weights, aten.sum_last(tape, weights, keepdim=True))
    del choice
    return weights, indices
