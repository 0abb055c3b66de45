"""A Program: what one class of ranks does in one step, in the order in which its host issues it. No times in it.

Rows are integer columns (`OP LAYER SLOT AMOUNT STREAM AUX`, see `tape.Op`). Layers are tiles of recorded sections, so a
step of a thousand layers is a handful of array copies; names are looked up only for what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcore.mesh import IntArray
from simcore.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Op
from simcore.tile import AMOUNT, AUX, LAYER, OP, SLOT, STREAM, Tile

__all__ = ["AMOUNT", "AUX", "BACKWARD_GATHER", "FORWARD_GATHER", "LAYER", "OP", "SLOT", "STREAM", "Builder", "Phase",
           "Program", "Stream", "Tables"]

TAPE_MARKS = ("bwd:recompute_begin", "bwd:recompute_end", "experts:forward_begin", "experts:forward_end",
              "experts:backward_begin", "experts:backward_end")
"""What the marks mean that a tape makes by number."""


class Phase(IntEnum):
    """Phases of a step, as reports name them."""

    BUILD = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    RECOMPUTE = 4
    OPTIMIZER = 5


class Stream(IntEnum):
    """Streams of a device; the host issues to all of them in program order."""

    COMPUTE = 0
    ALL_GATHER = 1
    REDUCE = 2
    ALL_REDUCE = 3
    SEND = 4
    RECEIVE = 5
    COPY = 6


FORWARD_GATHER, BACKWARD_GATHER = 0, 1
"""Handles of a unit's all-gathers, by the pass that issues them."""


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


class Piece(NamedTuple):
    """Where a stretch of the program comes from: a tile at a layer, or rows `start` to `end` of the loose ones."""

    tile: Tile | None
    start: int
    end: int
    layer: int
    phase: int
    microbatch: int

    @property
    def num_rows(self) -> int:
        """Rows of the stretch."""
        return self.end - self.start


@dataclass(frozen=True, eq=False)
class Program:
    """One step: pieces in order. `layer_paths` name layers, tables name the rest.

    `columns`, `phase` and `microbatch` write all rows out, for those who need each of them.
    """

    pieces: tuple[Piece, ...]
    loose: IntArray
    tables: Tables
    layer_paths: tuple[str, ...]

    @cached_property
    def columns(self) -> IntArray:
        """All rows; whole columns are read, never whole rows, so columns are contiguous."""
        rows = np.concatenate([p.tile.rows if p.tile else self.loose[p.start:p.end] for p in self.pieces])
        columns: IntArray = np.asfortranarray(rows)
        columns[:, LAYER] += self._spread([p.layer for p in self.pieces])
        return columns

    @cached_property
    def phase(self) -> IntArray:
        """The phase of each row."""
        phase = self._spread([p.phase for p in self.pieces])
        at = 0
        for piece in self.pieces:
            if piece.tile is not None and piece.tile.replayed:
                phase[at:at + piece.num_rows][piece.tile.replay == 1] = Phase.RECOMPUTE
            at += piece.num_rows
        return phase

    @cached_property
    def microbatch(self) -> IntArray:
        """The microbatch of each row."""
        return self._spread([p.microbatch for p in self.pieces])

    def _spread(self, values: list[int]) -> IntArray:
        return np.repeat(np.array(values, dtype=np.int64), [p.num_rows for p in self.pieces])

    def calls(self) -> IntArray:
        """Collectives, copies and what is sent, not received: (communication row, payload bytes, phase, microbatch)."""
        op = self.loose[:, OP]
        sent = ((op == Op.COLLECTIVE) | (op == Op.COPY)) & (self.loose[:, STREAM] != Stream.RECEIVE)
        at = np.flatnonzero(sent)
        runs = [p for p in self.pieces if p.tile is None]
        of = np.searchsorted(np.array([p.start for p in runs]), at, side="right") - 1
        where = np.array([(p.phase, p.microbatch) for p in runs], dtype=np.int64).reshape(-1, 2)
        return np.concatenate([np.concatenate([self.loose[at][:, [SLOT, AMOUNT]], where[of]], axis=1),
                               self._tile_calls()])

    def _tile_calls(self) -> IntArray:
        tiles = [(p.tile.calls, p.phase, p.microbatch) for p in self.pieces if p.tile is not None and len(p.tile.calls)]
        if not tiles:
            return np.zeros((0, 4), dtype=np.int64)
        calls = np.concatenate([made for made, _, _ in tiles])
        times = [len(made) for made, _, _ in tiles]
        phase, microbatch = (np.repeat([tile[i] for tile in tiles], times) for i in (1, 2))
        phase[calls[:, 2] == 1] = Phase.RECOMPUTE
        return np.stack([calls[:, 0], calls[:, 1], phase, microbatch], axis=1)

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
        name, category = list(self.tables.slots)[slot]
        path = self.layer_paths[layer] if 0 <= layer < len(self.layer_paths) else f"stage border {layer}"
        return f"{path}/{name}", category


class Builder:
    """Puts a program together, in issue order. Rows that are no tile's are kept flat and become an array at the end."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.phase = Phase.BUILD
        self.microbatch = 0
        self._loose: list[int] = []
        self._taken = 0
        self._pieces: list[Piece] = []

    def at(self, phase: Phase, microbatch: int | None = None) -> None:
        """Rows from here on belong to this phase."""
        self._close()
        self.phase = phase
        self.microbatch = self.microbatch if microbatch is None else microbatch

    def tile(self, tile: Tile, layer: int) -> None:
        """Lay a recorded section at a layer."""
        if len(tile.rows):
            self._close()
            self._pieces.append(Piece(tile, 0, len(tile.rows), layer, self.phase, self.microbatch))

    def alloc(self, layer: int, slot: int, num_bytes: int) -> None:
        """An owner takes bytes; nothing is posted for none."""
        if num_bytes:
            self._loose += (0, layer, slot, num_bytes, 0, 0)

    def free(self, layer: int, slot: int, num_bytes: int) -> None:
        """An owner gives bytes back."""
        if num_bytes:
            self._loose += (1, layer, slot, -num_bytes, 0, 0)

    def mark(self, hook: int, unit: int = -1) -> None:
        """A hook is passed (of a unit, if it is one's)."""
        self._loose += (6, 0, hook, unit, 0, 0)

    def compute(self, kernel: int, flops: int, moved_bytes: int) -> None:
        """A kernel on the compute stream."""
        self._loose += (2, 0, kernel, flops, 0, moved_bytes)

    def collective(self, layer: int, comm: int, payload: int, stream: Stream, handle: int) -> None:
        """A collective that the host does not wait for; (layer, handle) names it."""
        self._loose += (3, layer, comm, payload, stream, handle)

    def wait(self, layer: int, handle: int) -> None:
        """The compute stream waits for a collective."""
        self._loose += (5, layer, 0, 0, 0, handle)

    def _close(self) -> None:
        """End the run of loose rows."""
        end = len(self._loose) // 6
        if end > self._taken:
            self._pieces.append(Piece(None, self._taken, end, 0, self.phase, self.microbatch))
            self._taken = end

    def build(self, layer_paths: Sequence[str]) -> Program:
        """The finished program."""
        self._close()
        loose = np.array(self._loose, dtype=np.int64).reshape(-1, 6)
        return Program(tuple(self._pieces), loose, self.tables, tuple(layer_paths))


assert (Op.ALLOC, Op.FREE, Op.COMPUTE, Op.COLLECTIVE, Op.WAIT, Op.MARK) == (0, 1, 2, 3, 5, 6)  # as written above
