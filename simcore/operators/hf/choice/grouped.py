"""The choice of experts within the best groups of experts (transformers 5.23 `models/deepseek_v3`)."""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.operators.shared import aten
from simcore.recording.tape import Tape, Tensor

__all__ = ["chosen_in_groups", "left_out", "mask_of_groups"]


def chosen_in_groups(tape: Tape, block: Moe, scores: Tensor, *, corrects: bool) -> tuple[Tensor, Tensor]:
    """Returns (weights, indices) of the experts with the largest scores within the best groups of experts.

    `corrects`: a buffer is added to the scores for the choice.
    """
    (tokens, experts), groups, dtype = scores.shape, block.num_groups, scores.dtype
    choice = aten.add_scalar(tape, scores, dtype="fp32") if corrects else scores
    of_groups = choice.view(tokens, groups, experts // groups)
    group_scores = aten.sum_last(tape, aten.topk(tape, of_groups, 2)[0])
    del of_groups
    group_indices = aten.topk(tape, group_scores, block.chosen_groups)[1]
    _named = mask_of_groups(tape, group_scores, scores.shape)
    choice = aten.masked_fill(tape, choice, left_out(tape, _named[-1], scores.shape))
    indices = aten.topk(tape, choice, block.top_k)[1]
    weights = aten.gather(tape, scores, indices)
    if block.normalised:
        total = "fp32" if corrects or dtype == "fp32" else ""  # under autocast a sum is in fp32
        denominator = aten.add_scalar(tape, aten.sum_last(tape, weights, keepdim=True, dtype=total))
        aten.div_(tape, weights, denominator)
    weights = aten.mul_scalar(tape, weights)
    del group_indices
    return weights, indices


def mask_of_groups(tape: Tape, of_groups: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Returns masks of groups [tokens, groups] and, with several, of experts [tokens, experts]."""
    mask = aten.select(tape, of_groups, of_groups.shape, of_groups.dtype, "group_mask")
    if of_groups.shape[-1] == 1:
        return (mask,)
    return mask, aten.select(tape, mask, shape, of_groups.dtype, "score_mask")


def left_out(tape: Tape, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns truth values [tokens, experts] of experts that are in none of the chosen groups."""
    return aten.select(tape, aten.select(tape, mask, shape, "uint8", "mask"), shape, "uint8", "mask")
