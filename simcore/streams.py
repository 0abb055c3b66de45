"""A program as the streams of a device see it: what they execute, in order, and what waits for what.

Comes in: a `Program` and the cost of its rows. Goes out: `Track`s, one a stream, for the timeline to run. Kernels with
nothing to wait for between them are one item.

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
from typing import NamedTuple

import numpy as np

from simcore.mesh import IntArray
from simcore.outline import BACKWARD_GATHER, FORWARD_GATHER
from simcore.program import Program
from simcore.tape import Kernel, Op, Stream
from simcore.tile import AMOUNT, AUX, LAYER, OP, SLOT, STREAM
from simcore.tiles import BORDER_HANDLES

__all__ = ["Call", "Item", "Track", "tracks"]

_COMPUTE, _GATHER, _RECEIVE = int(Stream.COMPUTE), int(Stream.ALL_GATHER), int(Stream.RECEIVE)


class Call(NamedTuple):
    """One collective.

    `gate`: the compute item after which it may start (-1: at once). `serial`: its number among the calls of this kind,
    so that the ranks of a group find each other.
    """

    number: int
    comm: int
    payload: int
    ns: int
    stream: int
    gate: int
    serial: int
    layer: int
    handle: int
    microbatch: int
    row: int


class Item(NamedTuple):
    """One thing on the compute stream: `ns` of kernels, then maybe an in-line call or a wait for call `wait_for`."""

    ns: int
    row: int
    call: Call | None = None
    wait_for: int = -1


@dataclass(frozen=True, eq=False)
class Track:
    """The compute stream's items and, for every other stream, its calls in issue order. `clock`: kernel ns by row."""

    items: tuple[Item, ...]
    calls: dict[int, tuple[Call, ...]]
    clock: IntArray


def tracks(program: Program, kernel_ns: IntArray, call_ns: Callable[[int, int], int]) -> Track:
    """Compile a program. `kernel_ns`: per row, 0 where no kernel; `call_ns(comm, payload)` in nanoseconds."""
    rows = program.distinct
    clock = np.cumsum(kernel_ns)
    compiler = _Compiler(call_ns)
    copies = (rows[:, OP] == Op.COMPUTE) & (rows[:, SLOT] == Kernel.COPY)
    seen = (rows[:, OP] == Op.COLLECTIVE) | (rows[:, OP] == Op.WAIT) | copies
    at = np.flatnonzero(seen[program.places])
    for row, fields, microbatch, now in zip(at.tolist(), program.rows(at).tolist(), program.microbatch[at].tolist(),
                                            clock[at].tolist(), strict=True):
        if fields[OP] == Op.WAIT:
            compiler.wait(row, fields[LAYER], fields[AUX], microbatch, now)
        elif fields[OP] == Op.COMPUTE:
            compiler.copy(row, now)
        else:
            compiler.call(row, fields, microbatch, now)
    compiler.finish(len(clock), int(clock[-1]) if len(clock) else 0)
    return Track(tuple(compiler.items), {s: tuple(c) for s, c in compiler.calls.items()}, clock)


class _Compiler:
    def __init__(self, call_ns: Callable[[int, int], int]) -> None:
        self.call_ns = call_ns
        self.items: list[Item] = []
        self.calls: dict[int, list[Call]] = {}
        self.open: dict[tuple[int, int, int], int] = {}
        self.serials: dict[tuple[int, int], int] = {}
        self.numbers = 0
        self.spent = 0
        self.copy_outs = [-1, -1]
        self.copies_out = False

    def wait(self, row: int, layer: int, handle: int, microbatch: int, now: int) -> None:
        number = self.open.pop(self._name(layer, handle, microbatch), None)
        if number is not None:
            self._item(now, row, wait_for=number)
            self.copies_out = handle in (FORWARD_GATHER, BACKWARD_GATHER)

    def copy(self, row: int, now: int) -> None:
        """The copy-out of the gather that was waited for: a later gather may start when it is done."""
        if self.copies_out:
            self._item(now, row)
            self.copy_outs = [self.copy_outs[1], len(self.items) - 1]
            self.copies_out = False

    def call(self, row: int, fields: list[int], microbatch: int, now: int) -> None:
        stream, handle = fields[STREAM], fields[AUX]
        serial = self.serials.get((fields[SLOT], fields[STREAM]), 0)
        self.serials[fields[SLOT], fields[STREAM]] = serial + 1
        ns = self.call_ns(fields[SLOT], fields[AMOUNT])
        gate = self._gate(stream, handle, now, row)
        made = Call(self.numbers, fields[SLOT], fields[AMOUNT], ns, stream, gate, serial, fields[LAYER], handle,
                    microbatch, row)
        self.numbers += 1
        if stream == _COMPUTE:
            self._item(now, row, call=made)
            return
        self.calls.setdefault(stream, []).append(made)
        self.open[self._name(fields[LAYER], handle, microbatch)] = made.number

    def _name(self, layer: int, handle: int, microbatch: int) -> tuple[int, int, int]:
        """What a wait says of its call. A stage may have several microbatches on their way at one border."""
        return layer, handle, microbatch if handle in BORDER_HANDLES else 0

    def _gate(self, stream: int, handle: int, now: int, row: int) -> int:
        if handle in (FORWARD_GATHER, BACKWARD_GATHER) and stream == _GATHER:
            return self.copy_outs[handle]
        if stream in (_GATHER, _COMPUTE, _RECEIVE):
            return -1
        if now > self.spent:
            self._item(now, row)
        return len(self.items) - 1

    def _item(self, now: int, row: int, call: Call | None = None, wait_for: int = -1) -> None:
        self.items.append(Item(now - self.spent, row, call, wait_for))
        self.spent = now

    def finish(self, row: int, now: int) -> None:
        self._item(now, row)
