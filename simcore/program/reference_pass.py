"""Passes beside the policy's: of a reference model, between the policy's forward and its loss, and those of KTO.

The policy's model has returned, so what only it held is free; what its graph keeps stays. The reference runs the same
layers without a graph, and its head's logits stay for the loss. KTO has the policy pass without a graph too, over
completions of other prompts, ahead of its forward or inside the loss, and the reference twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import MemoryHooks, PassHooks
from simcore.program.layer_passes import LayerPasses
from simcore.program.outline import Phase
from simcore.program.record_layers import RecordedLayers, keys_of
from simcore.program.stage_borders import Edges
from simcore.program.tile import LayerRows
from simcore.recording.layer import AHEAD, PREFERENCE, WHOLE_PAIRS
from simcore.recording.rows import (
    MISMATCHED_BORDER,
    MISMATCHED_REFERENCE,
    MODEL_END,
    OUTPUTS_COPIED,
    OUTPUTS_DROPPED,
    REFERENCE_BORDER,
)

__all__ = ["OF_LOSS", "PassesBeside", "Returned", "end_model"]


OF_LOSS: Final = frozenset({MODEL_END, OUTPUTS_COPIED, OUTPUTS_DROPPED, MISMATCHED_BORDER, MISMATCHED_REFERENCE,
                            REFERENCE_BORDER})
"""Marks inside a loss at which `PassesBeside` does something."""


class Returned:
    """Outputs of a model that its caller has, a trainer that computes the loss, and the end of the model's forward.

    The outputs of all layers but the last, whose norm is given, wait until they are dropped, in the policy's pass and
    in the reference's. `tiles`: the policy's passes by layer number.
    """

    def __init__(self, plan: Plan, builder: Builder, edges: Edges, tiles: Mapping[int, LayerPasses]) -> None:
        self.out, self.edges, self._tiles, self._plan = builder, edges, tiles, plan
        self._is_kept = plan.framework.loss in WHOLE_PAIRS
        self._waiting = list[tuple[LayerRows, int]]()
        self._wide = 0

    def drop(self, tile: LayerRows, layer: int, *, waits: bool) -> None:
        """Frees what a layer was given by `tile`, or later, if it is an output that the caller has and `waits`."""
        if self._is_kept and waits:
            self._waiting.append((tile, layer))
        else:
            self.out.tile(tile, layer)

    def at(self, mark: int, layer: int) -> None:
        """Ends the model, copies the outputs in fp32, or drops them; `layer`: number of the loss."""
        if mark == MODEL_END:
            kinds = (self._plan.graph.kinds[self._plan.graph.layers[each].kind].name for each in self._plan.layers)
            head = next(layer for layer, name in zip(self._plan.layers, kinds, strict=True) if name == "head")
            self.end(self._tiles, self._plan.layers, head)
            return
        if mark == OUTPUTS_COPIED:
            count = len(self._waiting) - 1  # one of them has what the model makes for all layers
            for _ in range(count):
                self.out.tile(self.edges.widen_hidden, layer)
        for tile, number in self._waiting:
            self.out.tile(tile, number)
        self._waiting.clear()
        for _ in range(self._wide):
            self.out.tile(self.edges.drop_wide, layer)
        self._wide = count if mark == OUTPUTS_COPIED else 0

    def end(self, tiles: Mapping[int, LayerPasses], layers: Sequence[int], head: int) -> None:
        """Ends a model's forward as `end_model`, but for the head's input."""
        self.drop(tiles[head].after, head, waits=True)
        end_model(self.out, self.edges, tiles, layers, -1)


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


class PassesBeside:
    """Passes without a graph through the layers of a rank that has the whole model, and the ends of the policy's own.

    `returned`: what the caller of the policy's model has.
    """

    def __init__(self, plan: Plan, hooks: MemoryHooks, recording: RecordedLayers, returned: Returned) -> None:
        kinds = {layer: plan.graph.kinds[plan.graph.layers[layer].kind].name for layer in plan.layers}
        self._out, self._hooks, self._edges, self._returned = returned.out, hooks, recording.edges, returned
        self._layers = [layer for layer in plan.layers if kinds[layer] != "loss"]
        self._norm, self._head, self._loss = (next((layer for layer, name in kinds.items() if name == part), -1)
                                              for part in ("final_norm", "head", "loss"))
        self._stem = plan.layers[0] + plan.graph.num_tower_parts
        self._is_ahead = plan.framework.loss in AHEAD
        keys = keys_of(plan)
        self._reference, self._mismatched = (
            {layer: made[keys[layer]] for layer in plan.layers if keys[layer] in made}
            for made in (recording.reference, recording.mismatched))

    def ahead(self) -> None:
        """Runs the policy over completions of other prompts, if it does before its forward."""
        if self._is_ahead:
            self._write(self._mismatched, self._hooks)
            for tile, _, _ in self._mismatched[self._loss].forward:
                self._out.tile(tile, self._loss)

    def at(self, mark: int, layer: int) -> None:
        """Writes what happens at a mark of `OF_LOSS` inside the loss, whose number is `layer`."""
        if mark == MISMATCHED_BORDER:
            self._write(self._mismatched, self._hooks)
        elif mark in (MISMATCHED_REFERENCE, REFERENCE_BORDER):
            self._write(self._reference, self._hooks.of_reference())
        else:
            self._returned.at(mark, layer)
            return
        self._out.at(Phase.LOSS)

    def _write(self, tiles: Mapping[int, LayerPasses], hooks: PassHooks) -> None:
        """Runs a forward of the layers with `tiles` until the model has returned its head's output."""
        out, edges = self._out, self._edges
        out.at(Phase.FORWARD)
        out.tile(edges.mask, self._layers[0])
        for layer in self._layers:
            hooks.forward_begin(layer)
            for tile, _, _ in tiles[layer].forward:
                out.tile(tile, layer)
            hooks.forward_end(layer)
            if layer != self._head:
                self._returned.drop(tiles[layer].after, layer, waits=self._stem < layer < self._norm)
            if layer == self._norm:
                self._returned.drop(tiles[self._stem + 1].late, self._stem + 1, waits=True)
                if self._stem > self._layers[0]:
                    out.tile(tiles[self._stem].late, self._stem)
        self._returned.end(tiles, self._layers, self._head)
