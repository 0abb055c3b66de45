"""A program as the streams of a device see it: what they execute, in order, and what waits for what.

Comes in: a `Program` and the cost of its rows. Goes out: a `Track` for the timeline to run; what follows from the
outline alone is its `Skeleton`, which programs share. Kernels with nothing to wait for between them are one item.

[Note: who waits]
The host issues everything ahead. A reduction starts when the kernels issued before it are done
(`reduce_scatter_stream.wait_stream(current_stream)`); a gather when the copy-out of an earlier gather is done, which
freed its buffer: the last one in backward, the one before that in forward (torch 2.13 `_fsdp_param_group.py`,
wait_for_unshard); a kernel when the collective that its `wait` names is done. Collectives that a layer calls itself are
in line with its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from simcore.edges import BORDER_HANDLES
from simcore.mesh import IntArray
from simcore.outline import BACKWARD_GATHER, FORWARD_GATHER, Outline
from simcore.program import Program
from simcore.tape import Kernel, Op, Stream
from simcore.tile import AMOUNT, LAYER, OP, SLOT

__all__ = ["Call", "Item", "Skeleton", "Track", "tracks"]

_COMPUTE, _GATHER, _RECEIVE = int(Stream.COMPUTE), int(Stream.ALL_GATHER), int(Stream.RECEIVE)


class Call(NamedTuple):
    """One collective.

    `gate`: the compute item after which it may start (-1: at once). `serial`: its number among the calls of this kind,
    so that the ranks of a group find each other.
    """

    number: int
    comm: int
    stream: int
    gate: int
    serial: int
    layer: int
    handle: int
    microbatch: int
    row: int


class Item(NamedTuple):
    """One thing on the compute stream: kernels up to a row, then maybe an in-line call or a wait for `wait_for`."""

    row: int
    call: Call | None = None
    wait_for: int = -1


@dataclass(frozen=True, eq=False)
class Skeleton:
    """The compute stream's items and, for every other stream, its calls in issue order; nothing has a length yet."""

    items: tuple[Item, ...]
    calls: dict[int, tuple[Call, ...]]
    call_rows: IntArray

    @cached_property
    def item_rows(self) -> IntArray:
        """The row of each item."""
        return np.array([item.row for item in self.items], dtype=np.int64)

    @cached_property
    def watched(self) -> frozenset[int]:
        """Items that some call waits for."""
        return frozenset(call.gate for calls in self.calls.values() for call in calls)


@dataclass(frozen=True, eq=False)
class Track:
    """A skeleton with lengths: ns of kernels of each item, of each call by number. `clock`: kernel ns by row."""

    skeleton: Skeleton
    item_ns: tuple[int, ...]
    call_ns: tuple[int, ...]
    clock: IntArray


def tracks(program: Program, kernel_ns: IntArray, call_ns: Callable[[int, int], int]) -> Track:
    """Compile a program. `kernel_ns`: per row, 0 where no kernel; `call_ns(comm, payload)` in nanoseconds."""
    skeleton = _skeleton(program.outline)
    clock = np.cumsum(kernel_ns)
    reached = clock[np.minimum(skeleton.item_rows, len(clock) - 1)] if len(clock) else np.zeros(1, dtype=np.int64)
    calls = program.distinct[program.places[skeleton.call_rows]]
    pairs = list(zip(calls[:, SLOT].tolist(), calls[:, AMOUNT].tolist(), strict=True))
    lengths = {pair: call_ns(*pair) for pair in dict.fromkeys(pairs)}
    return Track(skeleton, tuple(np.diff(reached, prepend=0).tolist()), tuple(lengths[pair] for pair in pairs), clock)


@lru_cache(maxsize=64)
def _skeleton(outline: Outline) -> Skeleton:
    """What runs, in order, and who waits for whom, is the same for all programs of an outline."""
    rows = np.concatenate([*(tile.rows for tile in outline.tiles), outline.loose])
    is_kernel = rows[:, OP] == Op.COMPUTE
    seen = (rows[:, OP] == Op.COLLECTIVE) | (rows[:, OP] == Op.WAIT) | (is_kernel & (rows[:, SLOT] == Kernel.COPY))
    at = np.flatnonzero(seen[outline.places])
    fields = rows[outline.places[at]]
    fields[:, LAYER] += outline.spread(3)[at]
    kernels = np.cumsum(is_kernel[outline.places])
    compiler = _Compiler()
    for row, (op, layer, slot, _, stream, handle), microbatch, before in zip(
            at.tolist(), fields.tolist(), outline.microbatch[at].tolist(), kernels[at].tolist(), strict=True):
        compiler.kernels = before
        if op == Op.WAIT:
            compiler.wait(row, layer, handle, microbatch)
        elif op == Op.COMPUTE:
            compiler.copy(row)
        else:
            compiler.call(Call(len(compiler.call_rows), slot, stream, -1, 0, layer, handle, microbatch, row))
    compiler.item(len(kernels))
    return Skeleton(tuple(compiler.items), {s: tuple(c) for s, c in compiler.calls.items()},
                    np.array(compiler.call_rows, dtype=np.int64))


class _Compiler:
    """`kernels`: how many were issued so far; `itemised`: how many of them are in an item."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.calls: dict[int, list[Call]] = {}
        self.call_rows: list[int] = []
        self.open: dict[tuple[int, int, int], int] = {}
        self.serials: dict[tuple[int, int], int] = {}
        self.kernels = self.itemised = 0
        self.copy_outs = [-1, -1]
        self.copies_out = False

    def wait(self, row: int, layer: int, handle: int, microbatch: int) -> None:
        number = self.open.pop(self._name(layer, handle, microbatch), None)
        if number is not None:
            self.item(row, wait_for=number)
            self.copies_out = handle in (FORWARD_GATHER, BACKWARD_GATHER)

    def copy(self, row: int) -> None:
        """The copy-out of the gather that was waited for: a later gather may start when it is done."""
        if self.copies_out:
            self.item(row)
            self.copy_outs = [self.copy_outs[1], len(self.items) - 1]
            self.copies_out = False

    def call(self, made: Call) -> None:
        kind = (made.comm, made.stream)
        serial = self.serials.get(kind, 0)
        self.serials[kind] = serial + 1
        made = made._replace(gate=self._gate(made), serial=serial)
        self.call_rows.append(made.row)
        if made.stream == _COMPUTE:
            self.item(made.row, call=made)
            return
        self.calls.setdefault(made.stream, []).append(made)
        self.open[self._name(made.layer, made.handle, made.microbatch)] = made.number

    def _name(self, layer: int, handle: int, microbatch: int) -> tuple[int, int, int]:
        """What a wait says of its call. A stage may have several microbatches on their way at one border."""
        return layer, handle, microbatch if handle in BORDER_HANDLES else 0

    def _gate(self, call: Call) -> int:
        if call.handle in (FORWARD_GATHER, BACKWARD_GATHER) and call.stream == _GATHER:
            return self.copy_outs[call.handle]
        if call.stream in (_GATHER, _COMPUTE, _RECEIVE):
            return -1
        if self.kernels > self.itemised:
            self.item(call.row)
        return len(self.items) - 1

    def item(self, row: int, call: Call | None = None, wait_for: int = -1) -> None:
        self.items.append(Item(row, call, wait_for))
        self.itemised = self.kernels
