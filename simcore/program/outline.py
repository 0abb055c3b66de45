"""The step template: a step of one rank without the rows inside layers. It does not depend on the workload.

The order of tiles, and the rows of a framework's hooks between them, follow from the placement, the schedule and which
gradients exist. Scenarios of other lengths, batches or hardware share a template; a `Program` adds the tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import starmap
from typing import NamedTuple

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM, LayerRows, posted_bytes, stacked
from simcore.recording.exact_sums import fitting
from simcore.recording.tape import Kernel, Op, Stream

__all__ = ["BACKWARD_GATHER", "BUCKET_GATHER", "FORWARD_GATHER", "Phase", "StepTemplate", "Tables", "TemplateSegment",
           "ranges"]

TAPE_MARKS = ("bwd:recompute_begin", "bwd:recompute_end", "experts:forward_begin", "experts:forward_end",
              "experts:backward_begin", "experts:backward_end", "bwd:gradients_begin")
"""Texts of the marks that a tape makes by number."""
_FREE, _COMPUTE, _COLLECTIVE, _COPY, _MARK = (
    int(op) for op in (Op.FREE, Op.COMPUTE, Op.COLLECTIVE, Op.COPY, Op.MARK))
_RECEIVE, _SCAN = int(Stream.RECEIVE), int(Kernel.MAMBA_SCAN)
Flags = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Phase(IntEnum):
    """Phase of a step in which an operation runs, as reports name it (in lower case).

    BUILD: allocations from before the step. LOSS is reported as part of forward too, RECOMPUTE as part of backward too.
    """

    BUILD = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    RECOMPUTE = 4
    OPTIMIZER = 5


FORWARD_GATHER, BACKWARD_GATHER = 0, 1
"""Handles of a unit's all-gathers, by the pass that issues them."""
BUCKET_GATHER = 4
"""Handle of an all-gather that starts when all kernels issued before it are done."""


class Tables:
    """Names behind the integers in the rows of one program; each mapping gives the number of a name.

    `slots`: owners of memory, (name, category). `comms`: (collective, mesh axis, dtype). `hooks`: names of a
    framework's callbacks with a placeholder for a unit's name ("fwd:pre_forward_begin:{}"), `units` those names (a unit
    is a group of parameters that are gathered together): a row that marks a hook has the number of the hook in column
    SLOT and that of the unit in column AMOUNT.
    """

    def __init__(self) -> None:
        self.slots: dict[tuple[str, str], int] = {}
        self.comms: dict[tuple[str, str, str], int] = {}
        self.hooks: dict[str, int] = {text: code for code, text in enumerate(TAPE_MARKS)}
        self.units: list[str] = []

    def slot(self, name: str, category: str) -> int:
        """Slot of an owner of memory: its index in `slots`, where it is added if it is new."""
        return self.slots.setdefault((name, category), len(self.slots))

    def comm(self, collective: str, axis: str, dtype: str) -> int:
        """Index in `comms` of a collective on a mesh axis in a dtype; it is added if it is new."""
        return self.comms.setdefault((collective, axis, dtype), len(self.comms))

    def hook(self, text: str) -> int:
        """Index in `hooks` of a hook's text; it is added if it is new."""
        return self.hooks.setdefault(text, len(self.hooks))

    def copy(self) -> Tables:
        """Tables with the same names, to which others can be added."""
        copy = Tables()
        copy.slots, copy.comms, copy.hooks = dict(self.slots), dict(self.comms), dict(self.hooks)
        copy.units = list(self.units)
        return copy


class TemplateSegment(NamedTuple):
    """Part of a step with one phase and one microbatch: a tile at a layer, or a run of loose rows.

    `tile`: number of the tile (recorded rows of a part of a layer), placed at layer number `layer` of the whole model;
    -1: the rows `start` to `end` (exclusive) of `StepTemplate.loose`. `phase`: a `Phase`; `microbatch`: among the
    simulated ones.
    """

    tile: int
    start: int
    end: int
    layer: int
    phase: int
    microbatch: int


@dataclass(frozen=True, eq=False)
class StepTemplate:
    """A step of one rank without the rows inside layers: which recorded part of which layer runs when.

    `columns`: its segments in order of issue as an array [field, segment], in the order of `TemplateSegment`. `loose`:
    rows between layers, from hooks and borders, [row, column], see `Op`. `tiles`: recorded parts of layers by number,
    as it was built; a program of another batch size brings its own. `layer_paths`: module paths of layers; `tables`:
    the other names. Values that do not depend on bytes or FLOPs of tiles are computed here, once.
    """

    columns: IntArray
    loose: IntArray
    tiles: tuple[LayerRows, ...]
    tables: Tables
    layer_paths: tuple[str, ...]

    @cached_property
    def owners(self) -> tuple[tuple[str, str], ...]:
        """(name, category) of each owner of memory; its index is the slot in rows."""
        return tuple(self.tables.slots)

    @cached_property
    def categories(self) -> tuple[tuple[str, ...], IntArray]:
        """(names of categories of memory, index of the category of each slot); a slot is an index in `owners`."""
        names = tuple(dict.fromkeys(category for _, category in self.owners))
        numbers = {name: number for number, name in enumerate(names)}
        return names, np.array([numbers[category] for _, category in self.owners], dtype=np.int64)

    @cached_property
    def groups(self) -> dict[str, IntArray]:
        """Indices of the segments (`pieces`) of each phase; phases without a segment are left out.

        Phases are forward, loss, backward, recompute and optimizer. The loss is also part of forward, recompute of
        backward. A tile with a replay inside is in backward only.
        """
        phases = self.columns[4]
        groups = {"forward": (phases == Phase.FORWARD) | (phases == Phase.LOSS), "loss": phases == Phase.LOSS,
                  "backward": (phases == Phase.BACKWARD) | (phases == Phase.RECOMPUTE),
                  "recompute": phases == Phase.RECOMPUTE, "optimizer": phases == Phase.OPTIMIZER}
        return {name: np.flatnonzero(inside) for name, inside in groups.items() if inside.any()}

    def piece(self, number: int) -> TemplateSegment:
        """Segment with that index."""
        return TemplateSegment(*self.columns[:, number].tolist())

    @cached_property
    def pieces(self) -> tuple[TemplateSegment, ...]:
        """All segments in order of issue."""
        return tuple(starmap(TemplateSegment, self.columns.T.tolist()))

    @cached_property
    def is_loose(self) -> Flags:
        """True for each segment of `pieces` that is a run of loose rows and not a tile."""
        loose: Flags = self.columns[0] < 0
        return loose

    @cached_property
    def running(self) -> IntArray:
        """Sum of allocated minus freed bytes of the loose rows up to and including each, without rows of tiles."""
        return np.cumsum(fitting(posted_bytes(self.loose)))

    @cached_property
    def nets(self) -> IntArray:
        """Bytes that each segment of `pieces` adds by its loose rows; 0 for tiles."""
        nets = np.zeros(self.columns.shape[1], dtype=np.int64)
        _, starts, ends, *_ = self.columns[:, self.is_loose]
        nets[self.is_loose] = self.running[ends - 1] - self._before(starts)
        return nets

    @cached_property
    def tops(self) -> IntArray:
        """Most bytes that each segment of `pieces` adds at any of its rows since it began; 0 for tiles."""
        tops = np.zeros(self.columns.shape[1], dtype=np.int64)
        starts = self.columns[1, self.is_loose]
        if len(starts):
            tops[self.is_loose] = np.maximum.reduceat(self.running, starts) - self._before(starts)
        return tops

    def _before(self, starts: IntArray) -> IntArray:
        sums: IntArray = np.concatenate([[0], self.running])[starts]
        return sums

    # ---- distinct rows: those of all tiles, then the loose ones -----------------------------------------------------
    @cached_property
    def distinct(self) -> IntArray:
        """Rows of all tiles as it was built, and then the loose ones, once each, as an array [row, column].

        In Fortran order, because whole columns are read. Layer numbers in rows of tiles are offsets from the tile's
        layer.
        """
        return stacked([*(tile.rows for tile in self.tiles), self.loose])

    @cached_property
    def lengths(self) -> IntArray:
        """Number of rows of each tile, in order, and a 0 at the end, for the number of loose segments, -1."""
        return np.array([*(len(tile.rows) for tile in self.tiles), 0], dtype=np.int64)

    @cached_property
    def firsts(self) -> IntArray:
        """Index of the first distinct row of each tile, and that of the first loose row at the end."""
        firsts: IntArray = np.cumsum(self.lengths) - self.lengths
        return firsts

    @cached_property
    def tile_of(self) -> IntArray:
        """Number of the tile of each distinct row that is in a tile."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def replay(self) -> IntArray:
        """1 for each distinct row of a tile that is in a checkpoint's replay, else 0."""
        return np.concatenate([*(tile.replay for tile in self.tiles), np.zeros(0, dtype=np.int64)])

    def in_tiles(self, rows: Flags) -> IntArray:
        """Indices of the distinct rows of tiles for which `rows` [distinct row] is True."""
        return np.flatnonzero(rows[:len(self.tile_of)])

    @cached_property
    def posts(self) -> tuple[IntArray, IntArray]:
        """(indices of the distinct rows in tiles that allocate or free, their number in each tile)."""
        rows = self.in_tiles(self.distinct[:, OP] <= _FREE)
        return rows, np.bincount(self.tile_of[rows], minlength=len(self.lengths))

    @cached_property
    def replayed(self) -> tuple[int, ...]:
        """Numbers of the tiles with rows of a checkpoint's replay."""
        return tuple(np.unique(self.tile_of[self.replay == 1]).tolist())

    @cached_property
    def first_scans(self) -> tuple[int, ...]:
        """Index of the first segment of forward, and of backward, that is a tile with a Mamba scan, if there is one."""
        rows = self.distinct
        scanned = np.zeros(len(self.lengths), dtype=np.bool_)
        scanned[self.tile_of[self.in_tiles((rows[:, OP] == _COMPUTE) & (rows[:, SLOT] == _SCAN))]] = True
        tile, *_, phase, _ = self.columns
        found = (np.flatnonzero(scanned[tile] & (phase == wanted)) for wanted in (Phase.FORWARD, Phase.BACKWARD))
        return tuple(int(at[0]) for at in found if len(at))

    @cached_property
    def marked(self) -> IntArray:
        """Indices of the segments with a row that records a hook."""
        rows = np.flatnonzero(self.distinct[:, OP] == _MARK)
        tiles = self.in_tiles(self.distinct[:, OP] == _MARK)
        marked = np.zeros(len(self.lengths), dtype=np.bool_)
        marked[self.tile_of[tiles]] = True
        is_marked = marked[self.columns[0]]
        starts = np.flatnonzero(self.is_loose)
        is_marked[starts[np.searchsorted(self.columns[1, starts], rows[len(tiles):] - len(self.tile_of),
                                         side="right") - 1]] = True
        return np.flatnonzero(is_marked)

    # ---- all rows of the step, those of tiles too -----------------------------------------------------------------
    @cached_property
    def num_rows(self) -> IntArray:
        """Number of rows of each segment of `pieces`, in tiles and loose ones."""
        tile, start, end, *_ = self.columns
        num_rows: IntArray = end - start + self.lengths[tile]
        return num_rows

    @cached_property
    def places(self) -> IntArray:
        """Index of each row of the step among the distinct rows: those of all tiles, then the loose ones."""
        tile, start, *_ = self.columns
        first = self.firsts[tile] + start - (np.cumsum(self.num_rows) - self.num_rows)
        places: IntArray = np.arange(self.num_rows.sum()) + np.repeat(first, self.num_rows)
        return places

    @cached_property
    def phase(self) -> IntArray:
        """`Phase` of each row of the step, as an integer; rows of a checkpoint's replay are RECOMPUTE."""
        phase = self.spread(4)
        ends = np.cumsum(self.num_rows)
        for number, tile in enumerate(self.tiles):
            if tile.replayed:
                for piece in np.flatnonzero(self.columns[0] == number).tolist():
                    phase[ends[piece] - len(tile.rows):ends[piece]][tile.replay == 1] = Phase.RECOMPUTE
        return phase

    @cached_property
    def microbatch(self) -> IntArray:
        """Index of the microbatch (among the simulated ones) of each row of the step, as `Program.microbatch`."""
        return self.spread(5)

    def by_segment(self, values: IntArray) -> IntArray:
        """Sum of `values` [distinct row] over the rows of each segment of `pieces`."""
        first, end = self._spans
        before = np.concatenate([[0], np.cumsum(values)])
        sums: IntArray = before[end] - before[first]
        return sums

    @cached_property
    def _spans(self) -> IntArray:
        """Indices of the first distinct row of each segment of `pieces`, and of the row after its last."""
        tile, start, *_ = self.columns
        first = self.firsts[tile] + start
        return np.stack([first, first + self.num_rows])

    def by_microbatch(self, values: IntArray) -> IntArray:
        """Sum of `values` [distinct row] over the step's rows, of each microbatch; sums are exact below 2**53."""
        return np.bincount(self.columns[5], weights=self.by_segment(values)).astype(np.int64)

    def spread(self, field: int) -> IntArray:
        """For each row of the step, field number `field` (of `TemplateSegment`) of the segment in which it is."""
        return np.repeat(self.columns[field], self.num_rows)

    @cached_property
    def calls(self) -> IntArray:
        """Collectives, copies and sends in loose rows, without receives, as an array [call, field].

        Fields: index of the communication in `Tables.comms`, payload bytes, phase, microbatch.
        """
        at = np.flatnonzero(_is_call(self.loose))
        _, starts, _, _, phase, microbatch = self.columns[:, self.is_loose]
        of = np.searchsorted(starts, at, side="right") - 1
        return np.stack([self.loose[at, SLOT], self.loose[at, AMOUNT], phase[of], microbatch[of]], axis=1)

    @cached_property
    def comms(self) -> tuple[int, ...]:
        """Indices in `Tables.comms` of the communications of all collectives, copies and sends, without receives."""
        slots = self.distinct[_is_call(self.distinct), SLOT]
        return tuple(np.flatnonzero(np.bincount(slots)).tolist())

    @cached_property
    def call_rows(self) -> IntArray:
        """Indices among the distinct rows of the collectives, copies and sends in tiles, without receives."""
        return self.in_tiles(_is_call(self.distinct))

    @cached_property
    def tile_calls(self) -> IntArray:
        """Collectives, copies and sends in tiles, one for each time that a tile is placed, as `calls`.

        In place of its payload bytes each has its index among the calls of all tiles, because bytes differ between
        programs.
        """
        rows = self.call_rows
        counts = np.bincount(self.tile_of[rows], minlength=len(self.lengths))
        tile, *_, phase, microbatch = self.columns
        numbers = ranges((np.cumsum(counts) - counts)[tile], counts[tile])
        phase, microbatch = (np.repeat(field, counts[tile]) for field in (phase, microbatch))
        phase[self.replay[rows[numbers]] == 1] = Phase.RECOMPUTE
        return np.stack([self.distinct[rows[numbers], SLOT], numbers, phase, microbatch], axis=1)


def ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Whole numbers from `starts[i]` on, `counts[i]` of them, for each i, in one array."""
    ends = np.cumsum(counts)
    numbers: IntArray = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
    return numbers


def _is_call(rows: IntArray) -> Flags:
    """True for each collective, copy and send; receives are counted by their senders."""
    op = rows[:, OP]
    calls: Flags = ((op == _COLLECTIVE) | (op == _COPY)) & (rows[:, STREAM] != _RECEIVE)
    return calls
