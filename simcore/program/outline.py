"""An outline: a step of one rank without what happens inside layers. It does not know the workload.

Which tiles are laid where, and the rows between them that a framework's flow writes, follow from the placement, the
schedule and which gradients exist. Scenarios of other lengths, batches or hardware share it; a `Program` fills it in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM, LayerRows, posted_bytes
from simcore.recording.exact_sums import fitting
from simcore.recording.tape import Op, Stream

__all__ = ["BACKWARD_GATHER", "BUCKET_GATHER", "FORWARD_GATHER", "Phase", "StepTemplate", "Tables", "TemplateSegment"]

TAPE_MARKS = ("bwd:recompute_begin", "bwd:recompute_end", "experts:forward_begin", "experts:forward_end",
              "experts:backward_begin", "experts:backward_end", "bwd:gradients_begin")
"""What the marks mean that a tape makes by number."""


class Phase(IntEnum):
    """Phases of a step, as reports name them."""

    BUILD = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    RECOMPUTE = 4
    OPTIMIZER = 5


FORWARD_GATHER, BACKWARD_GATHER = 0, 1
"""Handles of a unit's all-gathers, by the pass that issues them."""
BUCKET_GATHER = 4
"""Handle of an all-gather that starts when the kernels issued before it are done."""


class Tables:
    """Row numbers -> what they are, shared by all sections of one program.

    `hooks` are texts with a place for a unit's name ("fwd:pre_forward_begin:{}"); `units` those names. A mark's SLOT is
    its hook, its AMOUNT the unit.
    """

    def __init__(self) -> None:
        self.slots: dict[tuple[str, str], int] = {}
        self.comms: dict[tuple[str, str, str], int] = {}
        self.hooks: dict[str, int] = {text: code for code, text in enumerate(TAPE_MARKS)}
        self.units: list[str] = []

    def slot(self, name: str, category: str) -> int:
        """The row of an owner."""
        return self.slots.setdefault((name, category), len(self.slots))

    def comm(self, collective: str, axis: str, dtype: str) -> int:
        """The row of a kind of communication."""
        return self.comms.setdefault((collective, axis, dtype), len(self.comms))

    def hook(self, text: str) -> int:
        """The row of a hook's name."""
        return self.hooks.setdefault(text, len(self.hooks))


class TemplateSegment(NamedTuple):
    """A stretch of the step: tile number `tile` at a layer, or, if that is -1, loose rows `start` to `end`."""

    tile: int
    start: int
    end: int
    layer: int
    phase: int
    microbatch: int


@dataclass(frozen=True, eq=False)
class StepTemplate:
    """Pieces in order, and the rows that are no tile's. `tiles`: those it was written with, in order of number.

    `layer_paths` name layers, `tables` the rest. What needs no tile's bytes or FLOPs is worked out here, once.
    """

    pieces: tuple[TemplateSegment, ...]
    loose: IntArray
    tiles: tuple[LayerRows, ...]
    tables: Tables
    layer_paths: tuple[str, ...]

    @cached_property
    def owners(self) -> tuple[tuple[str, str], ...]:
        """(name, category) by slot."""
        return tuple(self.tables.slots)

    @cached_property
    def categories(self) -> tuple[tuple[str, ...], IntArray]:
        """Their names, and the number of each slot's."""
        names = tuple(dict.fromkeys(category for _, category in self.owners))
        numbers = {name: number for number, name in enumerate(names)}
        return names, np.array([numbers[category] for _, category in self.owners], dtype=np.int64)

    @cached_property
    def groups(self) -> dict[str, IntArray]:
        """Pieces by the phases that a ledger tells; the loss is part of forward too, a replay part of backward too."""
        phases = self.columns[4]
        groups = {"forward": (phases == Phase.FORWARD) | (phases == Phase.LOSS), "loss": phases == Phase.LOSS,
                  "backward": (phases == Phase.BACKWARD) | (phases == Phase.RECOMPUTE),
                  "recompute": phases == Phase.RECOMPUTE, "optimizer": phases == Phase.OPTIMIZER}
        return {name: np.flatnonzero(inside) for name, inside in groups.items() if inside.any()}

    @cached_property
    def columns(self) -> IntArray:
        """The pieces' fields, a row each, in `TemplateSegment`'s order; tile numbers of loose rows are -1."""
        columns: IntArray = np.array(self.pieces, dtype=np.int64).reshape(-1, 6).T
        return columns

    @cached_property
    def is_loose(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which pieces are loose rows."""
        loose: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = self.columns[0] < 0
        return loose

    @cached_property
    def running(self) -> IntArray:
        """Bytes that loose rows have added up to, after each of them."""
        return np.cumsum(fitting(posted_bytes(self.loose)))

    @cached_property
    def nets(self) -> IntArray:
        """Bytes that each loose piece adds; 0 for tiles."""
        nets = np.zeros(len(self.pieces), dtype=np.int64)
        _, starts, ends, *_ = self.columns[:, self.is_loose]
        nets[self.is_loose] = self.running[ends - 1] - self._before(starts)
        return nets

    @cached_property
    def tops(self) -> IntArray:
        """The most that each loose piece adds at any of its rows; 0 for tiles."""
        tops = np.zeros(len(self.pieces), dtype=np.int64)
        starts = self.columns[1, self.is_loose]
        if len(starts):
            tops[self.is_loose] = np.maximum.reduceat(self.running, starts) - self._before(starts)
        return tops

    def _before(self, starts: IntArray) -> IntArray:
        sums: IntArray = np.concatenate([[0], self.running])[starts]
        return sums

    @cached_property
    def firsts(self) -> dict[Phase, dict[int, int]]:
        """By phase, the first piece of each tile that is laid in it."""
        found: dict[Phase, dict[int, int]] = {phase: {} for phase in Phase}
        for place, piece in enumerate(self.pieces):
            found[Phase(piece.phase)].setdefault(piece.tile, place)
        return found

    # ---- all rows of the step, those of tiles too -----------------------------------------------------------------
    @cached_property
    def num_rows(self) -> IntArray:
        """Of each piece."""
        tile, start, end, *_ = self.columns
        lengths = np.array([*(len(tile.rows) for tile in self.tiles), 0], dtype=np.int64)
        num_rows: IntArray = end - start + lengths[tile]
        return num_rows

    @cached_property
    def places(self) -> IntArray:
        """For each row of the step its number among the rows of all tiles and the loose ones, once each."""
        tile, start, *_ = self.columns
        firsts = np.cumsum([0, *(len(tile.rows) for tile in self.tiles)])[tile]
        first = firsts + start - (np.cumsum(self.num_rows) - self.num_rows)
        places: IntArray = np.arange(self.num_rows.sum()) + np.repeat(first, self.num_rows)
        return places

    @cached_property
    def phase(self) -> IntArray:
        """The phase of each row."""
        phase = self.spread(4)
        ends = np.cumsum(self.num_rows)
        for number, tile in enumerate(self.tiles):
            if tile.replayed:
                for piece in np.flatnonzero(self.columns[0] == number).tolist():
                    phase[ends[piece] - len(tile.rows):ends[piece]][tile.replay == 1] = Phase.RECOMPUTE
        return phase

    @cached_property
    def microbatch(self) -> IntArray:
        """The microbatch of each row."""
        return self.spread(5)

    def spread(self, field: int) -> IntArray:
        """A piece's field, for each row of the step."""
        return np.repeat(self.columns[field], self.num_rows)

    @cached_property
    def calls(self) -> IntArray:
        """Collectives, copies and what is sent: (communication row, payload bytes, phase, microbatch) of loose rows."""
        op = self.loose[:, OP]
        at = np.flatnonzero(((op == Op.COLLECTIVE) | (op == Op.COPY)) & (self.loose[:, STREAM] != Stream.RECEIVE))
        _, starts, _, _, phase, microbatch = self.columns[:, self.is_loose]
        of = np.searchsorted(starts, at, side="right") - 1
        return np.stack([self.loose[at, SLOT], self.loose[at, AMOUNT], phase[of], microbatch[of]], axis=1)

    @cached_property
    def tile_calls(self) -> IntArray:
        """The same of tiles, but not yet how many bytes: which of the calls of all tiles, laid end to end, each is."""
        calls = [tile.calls for tile in self.tiles]
        firsts = np.cumsum([0, *map(len, calls)])
        pieces = [p for p in self.pieces if p.tile >= 0 and len(calls[p.tile])]
        if not pieces:
            return np.zeros((0, 4), dtype=np.int64)
        made = np.concatenate([calls[p.tile] for p in pieces])
        numbers = np.concatenate([np.arange(firsts[p.tile], firsts[p.tile + 1]) for p in pieces])
        phase, microbatch = (np.repeat([p[field] for p in pieces], [len(calls[p.tile]) for p in pieces])
                             for field in (4, 5))
        phase[made[:, 2] == 1] = Phase.RECOMPUTE
        return np.stack([made[:, 0], numbers, phase, microbatch], axis=1)
