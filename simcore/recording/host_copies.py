"""Saved tensors of a layer that wait on the host from the end of its forward until its backward.

[Note: saved tensors on the host]
TransformerEngine d0067d0d `pytorch/cpu_offload.py` (OffloadableLayerState): hooks of autograd see every tensor that a
node saves. One of at least 256 * 1024 elements, which is no parameter and not marked (`mark_not_offload`: weights in 8
bits), is referred to until its copy is on the host, and again from the moment at which its return begins until all of
the layer is differentiated: so backward frees none of them node by node. Each is copied by itself, in the order in
which they were saved, there and back. Tensors that lie in one storage are one object or views of it, and copied once
(`_switch_to_base_tensors`, `_deduplicate_tensors`): attention's output, which attention and the next linear save, too.
A part of a tensor, which is not contiguous, stays; but for parts that attention reads in place the whole leaves
(`start_offload`, offload_base_tensor). A node waits for the copies of what it saved (`pop_tensor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from simcore.recording.rows import COMPUTE_STREAM, Op, Recorder, Section, Storage, Stream

__all__ = ["FROM_HOST", "STAYS", "TO_HOST", "HostCopies", "HostTrip"]

TO_HOST: Final = 1 << 24
"""Handle of the copy of a layer's first saved tensor; those of others follow."""
FROM_HOST: Final = 1 << 25
"""Handle of its copy back."""
_EMPTY: Final = Section(())


@dataclass(frozen=True, slots=True)
class HostTrip:
    """Rows of one layer whose saved tensors wait on the host.

    `leave`: copies to the host begin; `left`: they are done, and the tensors freed; `come`: new tensors, and copies
    back begin; `done`: the tensors that came back are freed, after the layer's backward.
    """

    leave: Section = _EMPTY
    left: Section = _EMPTY
    come: Section = _EMPTY
    done: Section = _EMPTY


STAYS: Final = HostTrip()
"""No rows: no saved tensor of the layer leaves."""


@dataclass(slots=True, eq=False)
class _Copy:
    """One tensor that leaves, and the places (node, index) where nodes save it.

    `num_bytes`, `dtype`: of its storage; `slot`, `offset`: the owner, which is that of the storage that comes back too.
    `is_awaited`: a node has waited for its return.
    """

    storage: Storage | None
    num_bytes: int
    dtype: str
    slot: int
    offset: int
    places: list[tuple[ref[Any], int]] = field(default_factory=list)
    is_awaited: bool = False

    def set_storage(self, storage: Storage | None) -> None:
        """Gives all that refer to the tensor another storage, or none."""
        self.storage = storage
        for node, index in self.places:
            if (holder := node()) is not None and holder.saved:
                holder.saved[index].storage = storage


class HostCopies:
    """Saved tensors of one layer on their way to the host and back; `least`: elements of the smallest that leaves."""

    def __init__(self, tape: Recorder, least: int) -> None:
        self.tape, self.least = tape, least
        self.copies: dict[int, _Copy] = {}
        self.staying: set[int] = set()
        self.whole: set[int] = set()
        self.have_come = False

    def stay(self, tensors: Sequence[Any]) -> None:
        """Marks tensors that stay on the device though nodes save them."""
        self.staying.update(id(tensor.storage) for tensor in tensors)

    def take_whole(self, tensors: Sequence[Any]) -> None:
        """Marks parts of a tensor that leave with all of it."""
        self.whole.update(id(tensor.storage) for tensor in tensors)

    def push(self, node: Any, first: int) -> None:
        """Takes what `node` has saved in forward, from index `first` on."""
        for index, tensor in enumerate(node.saved[first:], first):
            storage = tensor.storage
            if self.have_come or storage is None or id(storage) in self.staying or tensor.numel < self.least:
                continue
            if tensor.nbytes < storage.num_bytes and id(storage) not in self.whole:
                continue
            new = _Copy(storage, storage.num_bytes, tensor.dtype, storage.slot, storage.offset)
            self.copies.setdefault(id(storage), new).places.append((ref(node), index))

    def go_and_come(self) -> HostTrip:
        """Rows of the way there and back, after the layer's forward; `done` is still missing."""
        for number, copy in enumerate(self.copies.values()):
            self._copied("to_host", copy, TO_HOST + number)
        leave = self.tape.cut()
        if self.copies:  # one stream copies in order: the last one's end is the end of all
            self.tape.rows.append((Op.WAIT, 0, 0, 0, COMPUTE_STREAM, TO_HOST + len(self.copies) - 1))
        for copy in self.copies.values():
            copy.set_storage(None)
        left = self.tape.cut()
        for number, copy in enumerate(self.copies.values()):
            copy.set_storage(Storage(self.tape, copy.num_bytes, copy.slot, copy.offset))
            self._copied("to_device", copy, FROM_HOST + number)
        self.have_come = True
        return HostTrip(leave, left, self.tape.cut())

    def wait(self, node: Any) -> None:
        """Records the waits of a node, before it runs, for tensors that it saved and that have just come back."""
        for number, copy in enumerate(self.copies.values()):
            if not copy.is_awaited and any(place() is node for place, _ in copy.places):
                copy.is_awaited = True
                self.tape.rows.append((Op.WAIT, 0, 0, 0, COMPUTE_STREAM, FROM_HOST + number))

    def drop(self) -> Section:
        """Rows that free what came back."""
        for copy in self.copies.values():
            copy.set_storage(None)
        self.copies.clear()
        return self.tape.cut()

    def _copied(self, way: str, copy: _Copy, handle: int) -> None:
        comm = self.tape.comms.setdefault(("copy", way, copy.dtype), len(self.tape.comms))
        self.tape.rows.append((Op.COPY, 0, comm, copy.num_bytes, int(Stream.COPY), handle))
