"""The execution graph: the items that a device executes of a step template, and their dependencies, without durations.

Input: a `StepTemplate`. Output: an `ExecutionGraph`, which programs share. Kernels of one pass without a wait between
them are one item.

[Note: dependencies]
The host issues everything ahead. A reduction starts when the kernels before it are done
(`reduce_scatter_stream.wait_stream(current_stream)`), an all-reduce of its result over replicas when it is done too
(`all_reduce_stream.wait_stream(reduce_scatter_stream)`, torch 2.13 `_fsdp_collectives.py`:654); a gather when the
copy-out of an earlier gather is done, which freed its buffer: the last in backward, the one before in forward (torch
2.13 `_fsdp_param_group.py`, wait_for_unshard); none before the end of an earlier microbatch at which the host waited
for the device (`HOST_DRAINS`). A gather of Megatron-FSDP starts, as a reduction does, when the kernels before it are
done (`all_gather_stream.wait_stream(current_stream)`, core 0.16.1 param_and_grad_buffer.py:3604). A kernel starts when
the collective that its `wait` names is done. Collectives that a layer calls itself run on the compute stream, in order
with its kernels. Copies from and to the host are calls that no other rank joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcore.placement.mesh import IntArray
from simcore.program.outline import BACKWARD_GATHER, BUCKET_GATHER, FORWARD_GATHER, Phase, StepTemplate
from simcore.program.row_cache import held
from simcore.program.stage_borders import BORDER_HANDLES
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.rows import HOST_DRAINS, HOST_STOPS
from simcore.recording.tape import Kernel, Op, Stream

__all__ = ["CollectiveCall", "ComputeItem", "ExecutionGraph", "execution_graph"]

_COMPUTE, _GATHER, _SEND, _RECEIVE = map(int, (Stream.COMPUTE, Stream.ALL_GATHER, Stream.SEND, Stream.RECEIVE))
_REDUCE, _ALL_REDUCE = int(Stream.REDUCE), int(Stream.ALL_REDUCE)
_WAIT, _HOST, _KERNEL = int(Op.WAIT), int(Op.HOST), int(Op.COMPUTE)
_IS_SEEN = np.isin(range(len(Op)), (Op.COLLECTIVE, Op.COPY, Op.WAIT, Op.HOST))
_HOST_WAITS, _GATHERS = (HOST_STOPS, HOST_DRAINS), (FORWARD_GATHER, BACKWARD_GATHER)
_PASS = np.array([{Phase.LOSS: Phase.FORWARD, Phase.RECOMPUTE: Phase.BACKWARD}.get(phase, phase) for phase in Phase])
"""The pass that a phase is part of."""


class CollectiveCall(NamedTuple):
    """One call of a collective, message or copy in one rank's program.

    `number`: its index among the program's calls; `comm`: index of its communicator; `stream`: number of the stream
    (`Stream`) that it runs on. `gate`: index of the compute item (see `ComputeItem`) after which it may start (-1: at
    once). `serial`: its number among the calls of this communicator on this stream; equal numbers of the group's ranks
    are one call. `layer`, `handle`, `microbatch`: key by which a later wait names the call. `row`: index of its row;
    `after`: index of the compute item after which it was issued. `follows`: number of the call on another stream that
    must be done before it starts, -1 for none.
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
    after: int = -1
    follows: int = -1


class ComputeItem(NamedTuple):
    """One item of the compute stream: kernels without a wait between them, then possibly a call or a wait.

    `row`: index of its last row in the program. `call`: collective that runs on the compute stream after its kernels,
    None for none; `wait_for`: number of the call that it waits for at its end, -1 for none. `stops_host`: the host
    waits until its kernels are done. `message`: number of the call between pipeline stages that is sent or arrives
    here, -1 for none.
    """

    row: int
    call: CollectiveCall | None = None
    wait_for: int = -1
    stops_host: bool = False
    message: int = -1


@dataclass(frozen=True, eq=False)
class ExecutionGraph:
    """Compute items and calls of one program, and what each of them waits for, without durations.

    `items`: of the compute stream, in order of issue; `calls`: those of each other stream, by the stream's number, in
    order of issue; `call_rows`: row index of each call, by its number.
    """

    items: tuple[ComputeItem, ...]
    calls: dict[int, tuple[CollectiveCall, ...]]
    call_rows: IntArray

    @cached_property
    def item_rows(self) -> IntArray:
        """Index of the last row of each item, in the order of `items`."""
        return np.array([item.row for item in self.items], dtype=np.int64)

    @cached_property
    def awaited(self) -> tuple[IntArray, IntArray]:
        """(indices of the items that wait for a call or run one, numbers of these calls), in the same order."""
        named = np.array([i.call.number if i.call is not None else i.wait_for for i in self.items], dtype=np.int64)
        return np.flatnonzero(named >= 0), named[named >= 0]

    @cached_property
    def watched(self) -> frozenset[int]:
        """Indices of the compute items after which some call may start (-1: a call may start at once)."""
        return frozenset(call.gate for calls in self.calls.values() for call in calls)


_call, _item = partial(tuple.__new__, CollectiveCall), partial(tuple.__new__, ComputeItem)
"""Without the function call of a named tuple: there are thousands in a step."""


@held(element_bytes=250)
def execution_graph(outline: StepTemplate) -> ExecutionGraph:
    """Execution graph of a step template (the rows of all microbatches).

    Programs of the same template share it. Templates of ranks that differ only in sizes share a graph too: the fields
    of a template that are used are the key.
    """
    rows = outline.distinct
    is_kernel = rows[:, OP] == _KERNEL
    seen = _IS_SEEN[rows[:, OP]] | (is_kernel & (rows[:, SLOT] == int(Kernel.COPY)))
    ends = _ends_of_passes(outline)
    seen_at = seen[outline.places]
    at = np.flatnonzero(seen_at | ends)
    fields = rows[outline.places[at]]
    fields[:, LAYER] += outline.spread(3)[at]
    fields[:, AMOUNT] = 0
    kernels = np.cumsum(is_kernel[outline.places])
    table = np.column_stack([at, fields, outline.microbatch[at], kernels[at], seen_at[at], ends[at]])
    return _compiled(table.astype(np.int64).tobytes(), len(kernels))


@held(element_bytes=250)
def _compiled(seen: bytes, num_rows: int) -> ExecutionGraph:
    """Execution graph of the rows in `seen`: index, fields without amount, microbatch, kernels so far, flags."""
    compiler = _Compiler()
    for row, op, layer, slot, _, stream, handle, microbatch, before, is_seen, is_end in (
            np.frombuffer(seen, dtype=np.int64).reshape(-1, 11).tolist()):
        compiler.kernels = before
        if is_seen:
            if op == _WAIT:
                compiler.wait(row, layer, handle, microbatch)
            elif op == _HOST:
                compiler.item(row)
            elif op == _KERNEL:
                compiler.copy(row)
            else:
                compiler.call(row, slot, stream, layer, handle, microbatch)
        if is_end and before > compiler.itemised:
            compiler.item(row)
    compiler.item(num_rows)
    return ExecutionGraph(tuple(compiler.items), {s: tuple(c) for s, c in compiler.calls.items()},
                    np.array(compiler.call_rows, dtype=np.int64))


def _ends_of_passes(outline: StepTemplate) -> NDArray[np.bool_]:
    """True for the last row of a microbatch's forward or backward pass, or of its part of the optimizer's.

    No item continues after it, so idle time and waiting belong to one pass, and repeat with it.
    """
    passes = outline.microbatch * len(Phase) + _PASS[outline.phase]
    return np.append(np.diff(passes) != 0, False)


class _Compiler:
    """Builds the execution graph row by row.

    `kernels`: number of kernels issued so far; `itemised`: number of them that are in an item. `drained`: the last item
    after which the host waited for all issued work.
    """

    def __init__(self) -> None:
        self.items: list[ComputeItem] = []
        self.calls: dict[int, list[CollectiveCall]] = {}
        self.call_rows: list[int] = []
        self.open: dict[tuple[int, int, int], int] = {}
        self.serials: dict[tuple[int, int], int] = {}
        self.kernels = self.itemised = 0
        self.copy_outs = [-1, -1]
        self.copies_out = False
        self.drained = -1

    def wait(self, row: int, layer: int, handle: int, microbatch: int) -> None:
        if handle in _HOST_WAITS:
            self.items.append(ComputeItem(row, stops_host=True))
            self.itemised = self.kernels
            self.drained = len(self.items) - 1 if handle == HOST_DRAINS else self.drained
            return
        number = self.open.pop(self._name(layer, handle, microbatch), None)
        if number is not None:
            self.item(row, wait_for=number, message=number if handle in BORDER_HANDLES else -1)
            self.copies_out = handle in _GATHERS

    def copy(self, row: int) -> None:
        """Handles the copy-out of the gather that was waited for: a later gather may start after it."""
        if self.copies_out:
            self.item(row)
            self.copy_outs = [self.copy_outs[1], len(self.items) - 1]
            self.copies_out = False

    def call(self, row: int, comm: int, stream: int, layer: int, handle: int, microbatch: int) -> None:
        serial, number = self.serials.get((comm, stream), 0), len(self.call_rows)
        self.serials[comm, stream] = serial + 1
        self.call_rows.append(row)
        gate = self._gate(row, stream, handle)
        follows = -1
        if stream == _ALL_REDUCE and (scattered := self.calls.get(_REDUCE)):
            follows = scattered[-1].number
        issued = _call((number, comm, stream, gate, serial, layer, handle, microbatch, row, len(self.items) - 1,
                        follows))
        if stream == _COMPUTE:
            self.items.append(_item((row, issued, -1, False, -1)))
            self.itemised = self.kernels
            return
        self.calls.setdefault(stream, []).append(issued)
        self.open[self._name(layer, handle, microbatch)] = number
        if stream == _SEND:
            self.item(row, message=number)

    def _name(self, layer: int, handle: int, microbatch: int) -> tuple[int, int, int]:
        """Key that links a wait to its call; several microbatches may be in transit at one stage border."""
        return layer, handle, microbatch if handle in BORDER_HANDLES else 0

    def _gate(self, row: int, stream: int, handle: int) -> int:
        if stream == _GATHER and handle in _GATHERS:
            return self.copy_outs[handle]
        if stream in (_GATHER, _COMPUTE, _RECEIVE) and handle != BUCKET_GATHER:
            return self.drained if stream == _GATHER else -1
        if self.kernels > self.itemised:
            self.item(row)
        return len(self.items) - 1

    def item(self, row: int, wait_for: int = -1, message: int = -1) -> None:
        self.items.append(_item((row, None, wait_for, False, message)))
        self.itemised = self.kernels
