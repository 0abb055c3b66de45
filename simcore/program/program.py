"""A Program: all operations of one class of ranks in one step, in the order in which its host issues them, untimed.

Rows are integer columns (`OP LAYER SLOT AMOUNT STREAM AUX`, see `recording.rows.Op`). Layers are tiles of recorded
sections, so a step of a thousand layers is a handful of array copies; names are looked up only where they are shown.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.outline import StepTemplate, Tables
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT, LayerRows, posted_bytes, stacked
from simcore.recording.exact_sums import fitting
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Op

__all__ = ["Program"]


@dataclass(frozen=True, eq=False)
class Program:
    """All operations of one rank in one step, in the order in which its host issues them.

    Of the step's microbatches it has only those that are simulated one by one (`pipeline.schedule`). An operation
    (allocation, free, kernel, collective, ...) is a row of six integers, see `Op`. `outline`: the step without the rows
    inside layers; `tiles`: rows of each recorded part of a layer (forward, backward, ...), which repeat at every layer
    of a kind. `columns`, `phase` and `microbatch` have an entry for every row of the step.
    """

    outline: StepTemplate
    tiles: tuple[LayerRows, ...]

    @property
    def tables(self) -> Tables:
        """Names that the integers in rows stand for: owners of memory, communications, hooks."""
        return self.outline.tables

    @property
    def layer_paths(self) -> tuple[str, ...]:
        """Module paths of all layers of the whole model by layer number: embedding (0), layers, norm, head, loss."""
        return self.outline.layer_paths

    @cached_property
    def distinct(self) -> IntArray:
        """Rows of all tiles and then those outside layers, once each, as an array [row, column], see `Op`.

        In Fortran order, because whole columns are read. Layer numbers in rows of tiles are offsets from the tile's
        layer.
        """
        if all(map(operator.is_, self.tiles, self.outline.tiles)):
            return self.outline.distinct
        return stacked([*(tile.rows for tile in self.tiles), self.outline.loose])

    @property
    def places(self) -> IntArray:
        """Index in `distinct` of each row of the step, so that equal rows are computed once."""
        return self.outline.places

    def rows(self, at: IntArray) -> IntArray:
        """Copies of the step's rows with the indices `at`, as an array [row, column]; layers are absolute."""
        rows = self.distinct[self.places[at]]
        rows[:, LAYER] += self.outline.spread(3)[at]
        return rows

    @cached_property
    def columns(self) -> IntArray:
        """All rows of the step in order of issue, as an array [row, column], with absolute layer numbers."""
        columns: IntArray = self.distinct.T[:, self.places].T
        columns[:, LAYER] += self.outline.spread(3)
        return columns

    @property
    def phase(self) -> IntArray:
        """`Phase` of each row of the step, as an integer."""
        return self.outline.phase

    @property
    def microbatch(self) -> IntArray:
        """Index of the microbatch (among the simulated ones) of each row of the step.

        Rows before the first pass have 0, those of the optimizer the index of the last pass.
        """
        return self.outline.microbatch

    @cached_property
    def tile_sums(self) -> tuple[IntArray, IntArray]:
        """Allocated minus freed bytes of each tile, and the most that it adds at any of its rows; 0 if it is empty.

        Each has a 0 at its end: for -1, the number of segments outside layers. Raises OverflowError if the bytes of a
        tile, allocated and freed, reach 2**62.
        """
        lengths, filled = self.outline.lengths, self.outline.lengths > 0
        nets, tops = np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64)
        posted = posted_bytes(self.distinct[:len(self.outline.tile_of)])
        if len(posted):
            starts = self.outline.firsts[filled]
            fitting(np.add.reduceat(np.abs(posted).astype(np.float64), starts).max(keepdims=True))
            sums = np.cumsum(posted)  # modulo 2**64, as are the differences, which fit
            sums -= np.repeat(sums[starts] - posted[starts], lengths[filled])
            nets[filled], tops[filled] = sums[starts + lengths[filled] - 1], np.maximum.reduceat(sums, starts)
        return nets, tops

    def payloads(self) -> IntArray:
        """Payload bytes of each collective, copy and send (no receives): outside layers, then once per tile."""
        return np.concatenate([self.outline.calls[:, 1], self.distinct[self.outline.call_rows, AMOUNT]])

    def calls(self) -> IntArray:
        """Collectives, copies and sends of the step, without receives, as an array [call, field].

        Fields: index of the communication in `Tables.comms`, payload bytes, phase, microbatch. Those outside layers
        come first.
        """
        rows = self.outline.tile_calls.copy()
        rows[:, 1] = self.payloads()[len(self.outline.calls) + rows[:, 1]]
        return np.concatenate([self.outline.calls, rows])

    def check(self) -> None:
        """Asserts that allocations are positive, frees negative, and no owner goes below zero bytes."""
        op, amount = self.columns[:, OP], self.columns[:, AMOUNT]
        assert (amount[op == Op.ALLOC] > 0).all(), "an allocation of nothing"
        assert (amount[op == Op.FREE] < 0).all(), "a free of nothing"
        allocated: dict[tuple[int, int], int] = {}
        for row in self.columns[op <= Op.FREE]:
            key = (int(row[LAYER]), int(row[SLOT]))
            allocated[key] = allocated.get(key, 0) + int(row[AMOUNT])
            assert allocated[key] >= 0, f"{self.owner(*key)} holds {allocated[key]} bytes"

    def event(self, mark: IntArray, layer: int) -> str:
        """Name of the framework's callback (hook) that a row records, as a trace spells it.

        `mark`: the row, of kind `Op.MARK`, out of `distinct`; `layer`: layer number of the tile that it is in, to which
        its own layer is added (0 for a row outside tiles).
        """
        hook, unit = int(mark[SLOT]), int(mark[AMOUNT])
        text = list(self.tables.hooks)[hook]
        if hook in (RECOMPUTE_BEGIN, RECOMPUTE_END):
            return f"{text}:{self.layer_paths[int(mark[LAYER]) + layer]}"
        return text.format(self.tables.units[unit]) if unit >= 0 else text

    def owner(self, layer: int, slot: int) -> tuple[str, str]:
        """(name, category) of the owner of memory with that layer and slot (index in `Tables.slots`).

        `layer`: number in the whole model. The name is "layer path/tensor", or "stage border N/tensor" where `layer` is
        no layer of the model.
        """
        name, category = self.outline.owners[slot]
        path = self.layer_paths[layer] if 0 <= layer < len(self.layer_paths) else f"stage border {layer}"
        return f"{path}/{name}", category
