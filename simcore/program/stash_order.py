"""Order in which a rank's layers bring what they keep to pages and back ([Note: paged stash], `operators/megatron`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcore.pipeline.schedule import Action
from simcore.program.builder import Builder
from simcore.program.layer_passes import LayerPasses

__all__ = ["StashOrder"]


class StashOrder:
    """Writer of the copies of layers' tensors to pages, and back, in the passes of one rank.

    `kept`: the pass under way and its backward or forward are neighbours, so its highest layer keeps its tensors.
    """

    def __init__(self, builder: Builder, tiles: Mapping[int, LayerPasses]) -> None:
        self._out, self._tiles = builder, tiles
        self._paged = {layer for layer, passes in tiles.items() if len(passes.stow.rows)}
        self._layers: list[int] = []
        self._waiting = -1
        self._forward = True
        self.kept = False

    def begin(self, actions: Sequence[Action], index: int, layers: Sequence[int]) -> None:
        """Begins the pass `actions[index]` over `layers` (numbers in the whole model) of a chunk."""
        action = actions[index]
        beside = index + 1 if action.forward else index - 1
        there = 0 <= beside < len(actions)
        self.kept = bool(self._paged) and there and actions[beside].key == (not action.forward, *action.key[1:])
        self._layers, self._forward = [layer for layer in layers if layer in self._paged], action.forward

    def border(self, layer: int) -> None:
        """Writes what happens where the experts of `layer` begin in forward, or are done in backward."""
        if self._forward:
            self._stow()
            top = self._layers[-1] if self.kept else -1
            self._waiting = layer if layer != top else -1
        else:
            below = [other for other in self._layers if other < layer]
            self._fetch(below[-1:])

    def end_forward(self) -> None:
        """Writes the frees of the pass's last originals, which upstream drops when the next experts begin."""
        self._stow()

    def begin_backward(self) -> None:
        """Writes the return of the highest layer's tensors, unless they have never left."""
        if not self.kept:
            self._fetch(self._layers[-1:])

    def _stow(self) -> None:
        if self._waiting >= 0:
            self._out.tile(self._tiles[self._waiting].stow, self._waiting)
            self._waiting = -1

    def _fetch(self, layers: Sequence[int]) -> None:
        for layer in layers:
            self._out.tile(self._tiles[layer].fetch, layer)
