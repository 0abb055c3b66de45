"""Layers that a pipeline stage holds."""

from __future__ import annotations

import pytest

from simcore.errors import NotYet
from simcore.models.graph import build, model_config
from simcore.placement.stages import contiguous, remainder_first, stage_layers


def test_slices_follow_each_other() -> None:
    assert contiguous([2, 3, 1]) == (range(2), range(2, 5), range(5, 6))


@pytest.mark.parametrize(("layers", "stages", "counts"), [
    (52, 8, [7, 7, 7, 7, 6, 6, 6, 6]), (5, 5, [1] * 5), (7, 2, [4, 3])])
def test_the_remainder_goes_to_the_first_stages(layers: int, stages: int, counts: list[int]) -> None:
    assert remainder_first(layers, stages) == counts


@pytest.mark.parametrize("counts", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_stages_partition_the_layers_with_the_ends_at_the_ends(counts: list[int]) -> None:
    graph = build(model_config("nemotron-3-tiny", None, "model"), "hf")
    stages = stage_layers(graph, contiguous(counts))
    assert [layer for stage in stages for layer in stage] == list(range(9))
    names = [[graph.kinds[graph.layers[layer].kind].name for layer in stage] for stage in stages]
    assert names[0][0] == "embedding"
    assert names[-1][-3:] == ["final_norm", "head", "loss"]
    assert [sum(name in ("mamba", "moe", "attention") for name in stage) for stage in names] == counts


def test_layers_that_share_a_block_are_not_cut_apart() -> None:
    """Zamba2's last hybrid layer is its 36th: stages may end behind it, and not before."""
    graph = build(model_config("zamba2-1.2b", None, "model"), "hf")
    assert [len(stage) for stage in stage_layers(graph, contiguous([36, 2]))] == [37, 5]
    with pytest.raises(NotYet, match=r"ends behind model\.layers\.34: layers on both sides share weights or inputs"):
        stage_layers(graph, contiguous([35, 3]))
