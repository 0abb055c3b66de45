"""Builder of a step's template: receives the rows of a framework's hooks in order of issue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase, StepTemplate, Tables
from simcore.program.tile import LayerRows
from simcore.recording.kernel_shape import MODULE_BITS
from simcore.recording.tape import Kernel, Op, Stream

__all__ = ["Builder", "Passage", "Place"]

_SIX: Final = Struct("6q")
"""A row or a segment as six integers of 64 bits: bytes that become an array without a conversion of each number."""
_packed = _SIX.pack


Place = tuple[int, int]
"""Position in a step under way: number of loose rows and of segments so far."""


@dataclass(frozen=True, eq=False)
class Passage:
    """Part of a step that can be appended again: `loose` rows packed, `pieces` its segments [segment, field].

    Loose rows are counted from its first. `phase`: the phase at its end.
    """

    loose: bytes
    pieces: IntArray
    phase: Phase


class Builder:
    """Builder of one step: takes its operations in order of issue and makes a `StepTemplate` of them.

    Operations inside layers come as tiles (recorded rows of one part of a layer); those that hooks (callbacks) of a
    framework post between layers are "loose" rows.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.phase = Phase.BUILD
        self.microbatch = 0
        self._loose = bytearray()
        self._taken = 0
        self._pieces = bytearray()
        self._tiles: list[LayerRows] = []
        self._numbers: dict[int, int] = {}

    def at(self, phase: Phase, microbatch: int | None = None) -> None:
        """Sets the phase of the rows that follow, and their microbatch unless `microbatch` is None."""
        self._close()
        self.phase = phase
        self.microbatch = self.microbatch if microbatch is None else microbatch

    def tile(self, tile: LayerRows, layer: int) -> None:
        """Appends the recorded rows `tile` (one part of a layer) at layer number `layer` of the whole model."""
        if not len(tile.rows):
            return
        number = self._numbers.get(id(tile))
        if number is None:
            number = self._numbers[id(tile)] = len(self._tiles)
            self._tiles.append(tile)
        if len(self._loose) > self._taken * _SIX.size:
            self._close()
        self._pieces += _packed(number, 0, 0, layer, self.phase, self.microbatch)

    def alloc(self, layer: int, slot: int, num_bytes: int) -> None:
        """Appends an allocation of `num_bytes` by the owner (layer, slot); no row for 0 bytes.

        `layer`: number in the whole model, embedding 0; `slot`: index of the owner's name in `Tables.slots`.
        """
        if num_bytes:
            self._loose += _packed(0, layer, slot, num_bytes, 0, 0)

    def free(self, layer: int, slot: int, num_bytes: int) -> None:
        """Appends a free of `num_bytes` (positive) by the owner (layer, slot); no row for 0 bytes.

        `layer`: number in the whole model, embedding 0; `slot`: index of the owner's name in `Tables.slots`.
        """
        if num_bytes:
            self._loose += _packed(1, layer, slot, -num_bytes, 0, 0)

    def mark(self, hook: int, unit: int = -1) -> None:
        """Appends a row that records a callback (hook) of the framework; it takes no time and no memory.

        `hook`: index in `Tables.hooks`; `unit`: index in `Tables.units` of the parameters concerned, -1 for none.
        """
        self._loose += _packed(6, 0, hook, unit, 0, 0)

    def compute(self, kernel: int, flops: int, moved_bytes: int, operators: int = 0) -> None:
        """Appends a kernel on the compute stream. `kernel`: number of its class (`Kernel`).

        `moved_bytes`: bytes that it reads and writes. `operators`: number of torch operators whose host time it takes,
        0 for the default of its class.
        """
        self._loose += _packed(2, 0, kernel, flops, operators << MODULE_BITS, moved_bytes)

    def python(self, operators: int) -> None:
        """Appends host time of `operators` torch operators; the device runs nothing."""
        self.compute(Kernel.ELEMENTWISE, 0, 0, operators)

    def collective(self, layer: int, comm: int, payload: int, stream: Stream, handle: int) -> None:
        """Appends a collective on a stream.

        The compute stream waits for it where `wait` has its layer (number in the whole model) and handle (a number that
        the caller chooses). `comm`: index in `Tables.comms`; `payload`: bytes, as `TrafficRow.payload_bytes` counts
        them.
        """
        self._loose += _packed(3, layer, comm, payload, stream, handle)

    def copy(self, layer: int, comm: int, num_bytes: int, stream: Stream, handle: int) -> None:
        """Appends a copy from or to the host.

        The compute stream waits for it where `wait` has its layer (number in the whole model) and handle (a number that
        the caller chooses). `comm`: index in `Tables.comms`, which names the direction.
        """
        self._loose += _packed(4, layer, comm, num_bytes, stream, handle)

    def host(self, num_bytes: int, where: int = 0) -> None:
        """Appends work of the host, during which it issues nothing, on `num_bytes`.

        `where` 0: in its memory (such as an optimizer on the CPU), 1: reads from its drives, 2: writes to its drives.
        """
        self._loose += _packed(7, 0, where, 0, 0, num_bytes)

    def wait(self, layer: int, handle: int) -> None:
        """Appends a wait of the compute stream for the collective or copy with that layer and handle."""
        self._loose += _packed(5, layer, 0, 0, 0, handle)

    def here(self) -> Place:
        """Place after all that was appended, where a passage can begin."""
        self._close()
        return self._taken, len(self._pieces) // _SIX.size

    def passage(self, start: Place) -> Passage:
        """Copy of all that was appended since `start`."""
        end, _ = self.here()
        loose, first = bytes(self._loose[start[0] * _SIX.size:end * _SIX.size]), start[1] * _SIX.size
        return Passage(loose, _moved(bytes(self._pieces[first:]), -start[0]), self.phase)

    def repeat(self, passage: Passage) -> None:
        """Appends a passage again, in the microbatch that is set now."""
        taken, _ = self.here()
        pieces = _moved(passage.pieces.tobytes(), taken)
        pieces[:, 5] = self.microbatch
        self._loose += passage.loose
        self._pieces += pieces.tobytes()
        self._taken = len(self._loose) // _SIX.size
        self.phase = passage.phase

    def _close(self) -> None:
        """Ends the run of loose rows."""
        end = len(self._loose) // _SIX.size
        if end > self._taken:
            self._pieces += _packed(-1, self._taken, end, 0, self.phase, self.microbatch)
            self._taken = end

    def build(self, layer_paths: Sequence[str]) -> StepTemplate:
        """Returns the `StepTemplate` of everything appended.

        `layer_paths`: module paths of the whole model's layers, by layer number.
        """
        self._close()
        pieces, loose = (np.frombuffer(bytes(each), dtype=np.int64).reshape(-1, 6)
                         for each in (self._pieces, self._loose))
        return StepTemplate(np.ascontiguousarray(pieces.T), loose, tuple(self._tiles), self.tables, tuple(layer_paths))


def _moved(packed: bytes, by: int) -> IntArray:
    """Segments whose runs of loose rows begin and end `by` rows later, [segment, field]."""
    pieces = np.frombuffer(packed, dtype=np.int64).reshape(-1, 6).copy()
    pieces[pieces[:, 0] < 0, 1:3] += by
    return pieces


assert tuple(range(8)) == (Op.ALLOC, Op.FREE, Op.COMPUTE, Op.COLLECTIVE, Op.COPY, Op.WAIT, Op.MARK, Op.HOST)
