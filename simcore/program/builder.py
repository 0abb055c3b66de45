"""Puts an outline together: what a framework's flow writes, in issue order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simcore.program.outline import Phase, StepTemplate, Tables, TemplateSegment
from simcore.program.tile import LayerRows
from simcore.recording.kernel_shape import MODULE_BITS
from simcore.recording.tape import Kernel, Op, Stream

__all__ = ["Builder"]


class Builder:
    """Puts an outline together, in issue order. Loose rows are kept flat and become an array at the end."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.phase = Phase.BUILD
        self.microbatch = 0
        self._loose: list[int] = []
        self._taken = 0
        self._pieces: list[TemplateSegment] = []
        self._tiles: list[LayerRows] = []
        self._numbers: dict[int, int] = {}

    def at(self, phase: Phase, microbatch: int | None = None) -> None:
        """Rows from here on belong to this phase."""
        self._close()
        self.phase = phase
        self.microbatch = self.microbatch if microbatch is None else microbatch

    def tile(self, tile: LayerRows, layer: int) -> None:
        """Lay a recorded section at a layer."""
        number = self._numbers.get(id(tile))
        if number is None:
            number = self._numbers[id(tile)] = len(self._tiles)
            self._tiles.append(tile)
        if len(tile.rows):
            self._close()
            self._pieces.append(TemplateSegment(number, 0, 0, layer, self.phase, self.microbatch))

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

    def compute(self, kernel: int, flops: int, moved_bytes: int, operators: int = 0) -> None:
        """A kernel on the compute stream; `operators`: of torch, that its host takes, if not what its kind does."""
        self._loose += (2, 0, kernel, flops, operators << MODULE_BITS, moved_bytes)

    def python(self, operators: int) -> None:
        """The host is busy for as long as so many operators of torch; nothing runs on the device."""
        self.compute(Kernel.ELEMENTWISE, 0, 0, operators)

    def collective(self, layer: int, comm: int, payload: int, stream: Stream, handle: int) -> None:
        """A collective that the host does not wait for; (layer, handle) names it."""
        self._loose += (3, layer, comm, payload, stream, handle)

    def copy(self, layer: int, comm: int, num_bytes: int, stream: Stream, handle: int) -> None:
        """A copy from or to the host, like a collective."""
        self._loose += (4, layer, comm, num_bytes, stream, handle)

    def host(self, num_bytes: int, where: int = 0) -> None:
        """The host reads and writes bytes of its own memory, or reads (1) or writes (2) its drives."""
        self._loose += (7, 0, where, 0, 0, num_bytes)

    def wait(self, layer: int, handle: int) -> None:
        """The compute stream waits for a collective."""
        self._loose += (5, layer, 0, 0, 0, handle)

    def _close(self) -> None:
        """End the run of loose rows."""
        end = len(self._loose) // 6
        if end > self._taken:
            self._pieces.append(TemplateSegment(-1, self._taken, end, 0, self.phase, self.microbatch))
            self._taken = end

    def build(self, layer_paths: Sequence[str]) -> StepTemplate:
        """The finished outline."""
        self._close()
        loose = np.array(self._loose, dtype=np.int64).reshape(-1, 6)
        return StepTemplate(tuple(self._pieces), loose, tuple(self._tiles), self.tables, tuple(layer_paths))


assert tuple(range(8)) == (Op.ALLOC, Op.FREE, Op.COMPUTE, Op.COLLECTIVE, Op.COPY, Op.WAIT, Op.MARK, Op.HOST)
