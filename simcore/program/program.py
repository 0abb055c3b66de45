"""A Program: all operations of one class of ranks in one step, in the order in which its host issues them, untimed.

Rows are integer columns (`OP LAYER SLOT AMOUNT STREAM AUX`, see `recording.rows.Op`). Layers are tiles of recorded
sections, so a step of a thousand layers is a handful of array copies; names are looked up only where they are shown.
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
    """One step: a template with its tiles, in order of their numbers.

    `columns`, `phase` and `microbatch` have an entry for every row of the step.
    """

    outline: StepTemplate
    tiles: tuple[LayerRows, ...]

    @property
    def tables(self) -> Tables:
        """Names by the indices in rows."""
        return self.outline.tables

    @property
    def layer_paths(self) -> tuple[str, ...]:
        """Paths of all layers of the model."""
        return self.outline.layer_paths

    @cached_property
    def distinct(self) -> IntArray:
        """Rows of all tiles and the loose ones, once each, in Fortran order, because whole columns are read."""
        rows = np.concatenate([*(tile.rows for tile in self.tiles), self.outline.loose])
        return np.asfortranarray(rows)

    @property
    def places(self) -> IntArray:
        """Index in `distinct` of each row of the step; values that do not depend on the layer are computed there."""
        return self.outline.places

    def rows(self, at: IntArray) -> IntArray:
        """Rows of the step with these indices."""
        rows = self.distinct[self.places[at]]
        rows[:, LAYER] += self.outline.spread(3)[at]
        return rows

    @cached_property
    def columns(self) -> IntArray:
        """All rows of the step."""
        columns: IntArray = self.distinct.T[:, self.places].T
        columns[:, LAYER] += self.outline.spread(3)
        return columns

    @property
    def phase(self) -> IntArray:
        """Phase of each row."""
        return self.outline.phase

    @property
    def microbatch(self) -> IntArray:
        """Microbatch of each row."""
        return self.outline.microbatch

    def of_tiles(self, values: list[int]) -> IntArray:
        """Array of one value a tile, indexed by tile number; index -1, of loose rows, gives 0."""
        return np.array([*values, 0], dtype=np.int64)

    def payloads(self) -> IntArray:
        """Bytes of the calls of loose rows and of all tiles, once each."""
        return np.concatenate([self.outline.calls[:, 1], *(tile.calls[:, 1] for tile in self.tiles)])

    def calls(self) -> IntArray:
        """(communication row, payload bytes, phase, microbatch) of collectives, copies and sends, without receives."""
        rows = self.outline.tile_calls.copy()
        rows[:, 1] = self.payloads()[len(self.outline.calls) + rows[:, 1]]
        return np.concatenate([self.outline.calls, rows])

    def check(self) -> None:
        """Asserts that no owner goes below zero bytes, frees are negative and allocations positive."""
        op, amount = self.columns[:, OP], self.columns[:, AMOUNT]
        assert (amount[op == Op.ALLOC] > 0).all(), "an allocation of nothing"
        assert (amount[op == Op.FREE] < 0).all(), "a free of nothing"
        allocated: dict[tuple[int, int], int] = {}
        for row in self.columns[op <= Op.FREE]:
            key = (int(row[LAYER]), int(row[SLOT]))
            allocated[key] = allocated.get(key, 0) + int(row[AMOUNT])
            assert allocated[key] >= 0, f"{self.owner(*key)} holds {allocated[key]} bytes"

    def event(self, mark: IntArray, layer: int) -> str:
        """Text of a mark's row; `layer`: the layer of its piece."""
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
