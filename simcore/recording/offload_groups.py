"""Saved tensors of single modules that wait on the host from the end of the module until the module behind it is done.

[Note: modules on the host]
Megatron-Core d98e8a64 `pipeline_parallel/fine_grained_activation_offload.py`. What a named module saves is a group. At
the group's end (`on_group_commit_forward`) each of its tensors of at least `min_offloaded_tensor_size` elements is
copied to the host, what several nodes save as often as they save it, and let go; tensors that others hold are emptied
(`forced_released_tensors`, resize_(0)). In backward the start of a group (`on_group_start_backward`) brings back the
last one that is still away: new tensors, and their copies; the end of a group (`on_group_commit_backward`) waits for
its own. The last group of each name stays on the device (`post_warmup_callback`). The allocator can use what is let
go only when its copy is done (record_stream), so reserved memory may be more.

Where all layers have the same named modules the group that comes back is that of the same name in the layer before, so
it has the tensors of this one: its rows are recorded here, with the number of that layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from simcore.recording.host_copies import FROM_HOST, TO_HOST
from simcore.recording.rows import COMPUTE_STREAM, Op, Recorder, Storage, Stream

__all__ = ["Group", "ModuleGroups", "OffloadGroups"]


@dataclass(frozen=True, slots=True)
class ModuleGroups:
    """Groups of one recorded layer: `modules` that make one, `least` elements of the smallest tensor that leaves.

    `below`: number of layers down to the next one with groups, 0 if there is none; `kept`: number of the instance, of
    each module, that stays on the device (the last one, in the last layer), -1 for none.
    """

    modules: tuple[str, ...]
    least: int
    below: int
    kept: int


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """One tensor that leaves: node and place that save it, its size, its owner's slot, and its number in the layer."""

    node: ref[Any]
    index: int
    num_bytes: int
    dtype: str
    slot: int
    number: int

    def set_storage(self, storage: Storage | None) -> None:
        """Gives what the node saves another storage, or none."""
        if (holder := self.node()) is not None:
            holder.saved[self.index].storage = storage


@dataclass(slots=True, eq=False)
class Group:
    """Tensors that one run of a module saves. `before`: the run of the same module before it in this layer.

    `leaves`: False if it stays on the device.
    """

    name: str
    before: Group | None
    leaves: bool
    saved: list[tuple[ref[Any], int]] = field(default_factory=list)
    entries: list[_Entry] = field(default_factory=list)


class OffloadGroups:
    """Groups of one layer, in order. `now`: the group whose module runs."""

    def __init__(self, tape: Recorder, asked: ModuleGroups) -> None:
        self.tape, self.asked = tape, asked
        self.now: Group | None = None
        self.last: dict[str, Group] = {}
        self.runs: dict[str, int] = {}
        self.number = 0

    def begin(self, name: str) -> Group:
        """Begins the group of a module that runs now."""
        run = self.runs.get(name, 0)
        self.runs[name] = run + 1
        self.now = self.last[name] = Group(name, self.last.get(name), run != self.asked.kept)
        return self.now

    def push(self, node: Any, first: int) -> None:
        """Takes what `node` has saved from index `first` on."""
        assert self.now is not None
        self.now.saved += [(ref(node), index) for index in range(first, len(node.saved))]

    def commit(self, group: Group, released: Sequence[Any]) -> None:
        """Records the copies of a group to the host, and lets its tensors and `released` go."""
        holder = tensor = None
        for node, index in group.saved:
            holder = node()
            tensor = holder.saved[index] if holder is not None else None
            if tensor is None or tensor.storage is None or tensor.numel < self.asked.least:
                continue
            group.entries.append(_Entry(node, index, tensor.nbytes, tensor.dtype, tensor.storage.slot, self.number))
            self.number += 1
        del tensor, holder
        if not group.leaves:
            return
        for entry in group.entries:
            self._copied("to_host", entry, TO_HOST, 0)
            entry.set_storage(None)
        for tensor in released:
            if tensor.storage is not None and tensor.numel >= self.asked.least:
                tensor.storage.empty()

    def start_backward(self, group: Group) -> None:
        """Records the return of the group before `group`: in this layer, or in the one below that has groups."""
        if group.before is not None:
            for entry in group.before.entries if group.before.leaves else ():
                entry.set_storage(Storage(self.tape, entry.num_bytes, entry.slot))
                self._copied("to_device", entry, FROM_HOST, 0)
        elif self.asked.below:
            last = self.last[group.name]
            for entry in last.entries:
                self.tape.rows.append((Op.ALLOC, -self.asked.below, entry.slot, entry.num_bytes, COMPUTE_STREAM, 0))
                self._copied("to_device", entry, FROM_HOST, -self.asked.below)

    def commit_backward(self, group: Group) -> None:
        """Records the wait for the group's own return."""
        if group.leaves and group.entries:
            self.tape.rows.append((Op.WAIT, 0, 0, 0, COMPUTE_STREAM, FROM_HOST + group.entries[-1].number))

    def come(self) -> None:
        """Gives the last group of each module, if it left, the tensors that a layer behind has brought back."""
        for group in self.last.values():
            for entry in group.entries if group.leaves else ():
                entry.set_storage(Storage(self.tape, entry.num_bytes, entry.slot, born=False))

    def _copied(self, way: str, entry: _Entry, first: int, offset: int) -> None:
        comm = self.tape.comms.setdefault(("copy", way, entry.dtype), len(self.tape.comms))
        self.tape.rows.append((Op.COPY, offset, comm, entry.num_bytes, int(Stream.COPY), first + entry.number))
