"""Layers of each pipeline stage: contiguous slices, embedding first, final norm, head and loss last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from simcore.errors import NotYet, Problem
from simcore.models.graph import ModelGraph

__all__ = ["contiguous", "remainder_first", "stage_layers"]


def contiguous(counts: Sequence[int]) -> tuple[range, ...]:
    """Returns consecutive ranges of the given lengths, from 0: [2, 3] -> (range(0, 2), range(2, 5))."""
    ends = list(accumulate(counts))
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


def remainder_first(num_layers: int, num_stages: int) -> list[int]:
    """Returns the number of layers of each stage: equal numbers, and one more on as many first stages as remain."""
    whole, rest = divmod(num_layers, num_stages)
    return [whole + (stage < rest) for stage in range(num_stages)]


def stage_layers(graph: ModelGraph, blocks: Sequence[range]) -> tuple[tuple[int, ...], ...]:
    """Returns the layer numbers of each stage, in the whole model; they include embedding, norm, head and loss.

    `blocks`: for each stage a range of its transformer blocks, counted from 0 without embedding. Layers before the
    blocks go to the first stage, those after them to the last. Raises NotYet if the graph cannot be cut between two.
    """
    inner = graph.blocks
    stages = [[inner[i] for i in part] for part in blocks]
    stages[0] = [*range(inner[0]), *stages[0]]
    stages[-1] = [*stages[-1], *range(inner[-1] + 1, len(graph.layers))]
    for border in (stage[-1] for stage in stages[:-1] if stage):
        if border not in graph.cuts:
            raise NotYet(Problem("mesh.pp", "not yet: a pipeline stage that ends behind "
                                 f"{graph.layers[border].path}: layers on both sides share weights or inputs"))
    return tuple(tuple(stage) for stage in stages)
