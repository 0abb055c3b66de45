"""A Program: what one class of ranks does in one step, in the order in which its host issues it. No times in it.

Rows are integer columns (`OP LAYER SLOT AMOUNT STREAM AUX`, see `tape.Op`). Layers are tiles of recorded sections, so a
step of a thousand layers is a handful of array copies; names are looked up only for what is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.outline import StepTemplate, Tables
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT, LayerRows
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Op

__all__ = ["Program"]


@dataclass(frozen=True, eq=False)
class Program:
    """One step: an outline whose tiles are `tiles`, in order of number.

    `columns`, `phase` and `microbatch` write all rows out, for those who need each of them.
    """

    outline: StepTemplate
    tiles: tuple[LayerRows, ...]

    @property
    def tables(self) -> Tables:
        """What the numbers in rows are."""
        return self.outline.tables

    @property
    def layer_paths(self) -> tuple[str, ...]:
        """Names of layers."""
        return self.outline.layer_paths

    @cached_property
    def distinct(self) -> IntArray:
        """Rows of all tiles and the loose ones, once each; whole columns are read, so columns are contiguous."""
        rows = np.concatenate([*(tile.rows for tile in self.tiles), self.outline.loose])
        return np.asfortranarray(rows)

    @property
    def places(self) -> IntArray:
        """For each row of the step its number in `distinct`: what does not depend on the layer is worked out there."""
        return self.outline.places

    def rows(self, at: IntArray) -> IntArray:
        """The rows with these numbers."""
        rows = self.distinct[self.places[at]]
        rows[:, LAYER] += self.outline.spread(3)[at]
        return rows

    @cached_property
    def columns(self) -> IntArray:
        """All rows."""
        columns: IntArray = self.distinct.T[:, self.places].T
        columns[:, LAYER] += self.outline.spread(3)
        return columns

    @property
    def phase(self) -> IntArray:
        """The phase of each row."""
        return self.outline.phase

    @property
    def microbatch(self) -> IntArray:
        """The microbatch of each row."""
        return self.outline.microbatch

    def of_tiles(self, values: list[int]) -> IntArray:
        """One value a tile, to be looked up by tile number: that of loose rows, -1, finds 0."""
        return np.array([*values, 0], dtype=np.int64)

    def payloads(self) -> IntArray:
        """Bytes of the calls of loose rows and of all tiles, once each."""
        return np.concatenate([self.outline.calls[:, 1], *(tile.calls[:, 1] for tile in self.tiles)])

    def calls(self) -> IntArray:
        """Collectives, copies and what is sent, not received: (communication row, payload bytes, phase, microbatch)."""
        laid = self.outline.tile_calls.copy()
        laid[:, 1] = self.payloads()[len(self.outline.calls) + laid[:, 1]]
        return np.concatenate([self.outline.calls, laid])

    def check(self) -> None:
        """Our own promises: no owner goes below zero, frees are negative, allocations positive."""
        op, amount = self.columns[:, OP], self.columns[:, AMOUNT]
        assert (amount[op == Op.ALLOC] > 0).all(), "an allocation of nothing"
        assert (amount[op == Op.FREE] < 0).all(), "a free of nothing"
        held: dict[tuple[int, int], int] = {}
        for row in self.columns[op <= Op.FREE]:
            key = (int(row[LAYER]), int(row[SLOT]))
            held[key] = held.get(key, 0) + int(row[AMOUNT])
            assert held[key] >= 0, f"{self.owner(*key)} holds {held[key]} bytes"

    def event(self, mark: IntArray, layer: int) -> str:
        """The text of a mark's row; `layer` is its piece's."""
        hook, unit = int(mark[SLOT]), int(mark[AMOUNT])
        text = list(self.tables.hooks)[hook]
        if hook in (RECOMPUTE_BEGIN, RECOMPUTE_END):
            return f"{text}:{self.layer_paths[int(mark[LAYER]) + layer]}"
        return text.format(self.tables.units[unit]) if unit >= 0 else text

    def owner(self, layer: int, slot: int) -> tuple[str, str]:
        """(name, category) of an owner."""
        name, category = self.outline.owners[slot]
        path = self.layer_paths[layer] if 0 <= layer < len(self.layer_paths) else f"stage border {layer}"
        return f"{path}/{name}", category
