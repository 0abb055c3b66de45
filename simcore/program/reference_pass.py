"""Pass of a reference model between the policy's forward and its loss.

The policy's model has returned, so what only it held is free; what its graph keeps stays. The reference runs the same
layers without a graph, and its head's logits stay for the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import MemoryHooks
from simcore.program.layer_passes import LayerPasses
from simcore.program.outline import Phase
from simcore.program.record_layers import RecordedLayers, keys_of
from simcore.program.stage_borders import Edges
from simcore.recording.layer import PREFERENCE

__all__ = ["ReferencePass", "end_model"]


def end_model(out: Builder, edges: Edges, tiles: Mapping[int, LayerPasses], layers: Sequence[int], head: int,
              loss: str = "") -> None:
    """Frees what a model's forward drops when it returns, ahead of a root's hook: the head's input, casts, the mask.

    Nothing where the `loss` is of preferences, which goes on with them. `tiles`: passes by layer number of the whole
    model; `layers`: those of a chunk; `head`: number of its head or -1.
    """
    if loss in PREFERENCE:
        return
    if head >= 0:
        out.tile(tiles[head].after, head)
    for layer in layers:
        if len(tiles[layer].casts.rows):
            out.tile(tiles[layer].casts, layer)
    out.tile(edges.drop_mask, layers[0])


class ReferencePass:
    """Pass of a reference model through the layers of a rank that has the whole model."""

    def __init__(self, plan: Plan, builder: Builder, hooks: MemoryHooks, recording: RecordedLayers) -> None:
        kinds = {layer: plan.graph.kinds[plan.graph.layers[layer].kind].name for layer in plan.layers}
        self._out, self._hooks, self._edges = builder, hooks, recording.edges
        self._layers = [layer for layer in plan.layers if kinds[layer] != "loss"]
        self._norm, self._head = (next(layer for layer, name in kinds.items() if name == part)
                                  for part in ("final_norm", "head"))
        self._stem = plan.layers[0] + plan.graph.num_tower_parts
        keys = keys_of(plan)
        self._tiles = {layer: recording.reference[keys[layer]] for layer in self._layers}

    def write(self) -> None:
        """Runs the forward of the reference, behind that of the policy, and is back in the loss."""
        out, edges = self._out, self._edges
        out.at(Phase.FORWARD)
        out.tile(edges.mask, self._layers[0])
        for layer in self._layers:
            self._hooks.forward_begin(layer)
            for tile, _, _ in self._tiles[layer].forward:
                out.tile(tile, layer)
            self._hooks.forward_end(layer)
            if layer != self._head:
                out.tile(self._tiles[layer].after, layer)
            if layer == self._norm:
                out.tile(self._tiles[self._stem + 1].late, self._stem + 1)
                if self._stem > self._layers[0]:
                    out.tile(self._tiles[self._stem].late, self._stem)
        end_model(out, edges, self._tiles, self._layers, self._head)
        out.at(Phase.LOSS)
