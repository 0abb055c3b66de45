"""Moments at which saved tensors of layers leave for the host and come back, in a pass over layers.

[Note: layers on the host]
TransformerEngine d0067d0d `pytorch/cpu_offload.py` (DefaultOffloadSynchronizer), which Megatron-Core's
`transformer_block.py` (d98e8a64:714) puts around every layer: of L layers the first n go. Before layer i + 1 runs
forward the copies of layer i begin (`fwd_step`); before layer L - n + i the device waits for their end and frees them,
so no more than L - n layers are kept at the end. Before the backward of layer L - 1 - n + i, when the tensors of the
layer behind it are freed, layer i gets new tensors, and copies back begin (`bwd_step`); the lowest layer's are freed at
the end of backward (`finish_part_of_bwd`). One stream has the copies of both ways.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.layer_passes import LayerPasses
from simcore.program.program import Program
from simcore.program.record_layers import blocks_of, leaving
from simcore.program.tile import AMOUNT, AUX, OP
from simcore.recording.host_copies import FROM_HOST, TO_HOST
from simcore.recording.tape import Op

__all__ = ["OffloadedLayers", "most_on_host"]


class OffloadedLayers:
    """Writer of the rows with which saved tensors of a stage's first layers leave and come back.

    Nothing is written if no layer's tensors leave.
    """

    def __init__(self, plan: Plan, builder: Builder, tiles: Mapping[int, LayerPasses]) -> None:
        self.out, self.tiles, self.blocks, self.away = builder, tiles, blocks_of(plan), leaving(plan)
        self.places = {layer: place for place, layer in enumerate(self.blocks)} if self.away else {}
        self.kept = len(self.blocks) - len(self.away)

    def forward_begin(self, layer: int) -> None:
        """Writes, before the forward of layer number `layer`, that the layer before it leaves, and which has left."""
        if (place := self.places.get(layer)) is None:
            return
        if (below := self._at(place - 1)) is not None:
            self.out.tile(self.tiles[below].leave, below)
        if (gone := self._at(place - self.kept)) is not None:
            self.out.tile(self.tiles[gone].left, gone)

    def backward_begin(self, layer: int) -> None:
        """Writes, before the backward of layer number `layer`, what is freed of the one above, and which comes back."""
        if (place := self.places.get(layer)) is None:
            return
        self._drop(place + 1)
        if (wanted := self._at(place - self.kept + 1)) is not None:
            self.out.tile(self.tiles[wanted].come, wanted)

    def backward_end(self) -> None:
        """Writes, at the end of a backward pass, that the lowest layer's tensors are freed."""
        self._drop(0)

    def _drop(self, place: int) -> None:
        if (layer := self._at(place)) is not None:
            self.out.tile(self.tiles[layer].done, layer)

    def _at(self, place: int) -> int | None:
        """The layer at a place in the order of the stage, if it is one that leaves."""
        return self.away[place] if 0 <= place < len(self.away) else None


def most_on_host(program: Program, *, rounded: bool) -> int:
    """Most bytes of saved tensors that wait on the host at once; 0 if none leave.

    A pinned buffer is there from the copy to the host until the copy back. `rounded`: its block is a power of two
    (torch 2.13 ATen/core/CachingHostAllocator.h:302).
    """
    distinct = program.distinct
    is_copy = (distinct[:, OP] == Op.COPY) & (distinct[:, AUX] >= TO_HOST)
    if not is_copy.any():
        return 0
    rows = distinct[program.places[np.flatnonzero(is_copy[program.places])]]
    sizes = [1 << (size - 1).bit_length() if rounded else size for size in rows[:, AMOUNT].tolist()]
    signs = np.where(rows[:, AUX] >= FROM_HOST, -1, 1)
    return int(np.cumsum(np.array(sizes, dtype=np.int64) * signs).max(initial=0))
