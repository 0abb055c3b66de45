"""Order in which layers' tensors go to pages and come back: that of Megatron-LM's own code, step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.pipeline.schedule import Schedule, actions
from simcore.program.builder import Builder
from simcore.program.layer_passes import LayerPasses
from simcore.program.outline import Tables
from simcore.program.stash_order import StashOrder
from simcore.program.tile import LayerRows, small_tile
from simcore.recording.tape import Op

STEPS = json.loads((Path(__file__).parents[1] / "truth/stash/paged_stash.json").read_text(encoding="utf-8"))
NONE, STOW, FETCH = small_tile(), small_tile((Op.FREE, 2, -8)), small_tile((Op.ALLOC, 2, 8))
PAGED = LayerPasses((), (), NONE, NONE, NONE, NONE, (), NONE, NONE, NONE, NONE, STOW, FETCH, NONE, NONE, NONE, NONE,
                    NONE)


class Told(Builder):
    """Builder that notes the tiles it gets: tile and layer."""

    def __init__(self) -> None:
        super().__init__(Tables())
        self.told: list[tuple[LayerRows, int]] = []

    def tile(self, tile: LayerRows, layer: int) -> None:
        self.told.append((tile, layer))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: str(step["case"]))
def test_layers_go_to_pages_and_come_back_as_in_megatron(step: dict[str, Any]) -> None:
    """A layer whose backward comes right after its forward stays."""
    case, stowed, fetched = step["case"], list[list[int]](), list[list[int]]()
    name = "1f1b" if case["chunks"] == 1 else "interleaved"
    schedule = Schedule(name, case["stages"], case["chunks"], case["stages"])
    layers = [[10 * chunk + layer for layer in range(case["layers"])] for chunk in range(case["chunks"])]
    out = Told()
    order = StashOrder(out, {layer: PAGED for some in layers for layer in some})
    passes = actions(schedule, case["stage"], case["microbatches"])
    for index, action in enumerate(passes):
        order.begin(passes, index, layers[action.chunk])
        if action.forward:
            for layer in layers[action.chunk]:
                order.border(layer)
            order.end_forward()
        else:
            order.begin_backward()
            for layer in reversed(layers[action.chunk]):
                order.border(layer)
        for tile, layer in out.told:
            (stowed if tile is STOW else fetched).append([layer // 10, action.microbatch, layer % 10])
        out.told.clear()
    assert (stowed, fetched) == (step["stowed"], step["fetched"])
