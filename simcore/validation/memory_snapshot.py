"""Reader of PyTorch's memory snapshots: the peak of the recorded window, and the allocations at that moment.

Input: bytes that `torch.cuda.memory._dump_snapshot` or a trainer's profiler wrote. Output: a `Dump`. The file is read
without running any code, see `plain_pickle`.

[Note: the recorded window]
Events are a ring buffer: the oldest are lost, and earlier allocations are known only from the blocks that still exist,
or from their free. So the peak is that of the window, backwards from the blocks at its end. Events have the requested
bytes (torch 2.13 `c10/cuda/CUDACachingAllocator.cpp`: `orig_size` in ALLOC, `requested_size` in FREE), as the ledger
does; `torch.cuda.max_memory_allocated` counts blocks in multiples of 512 B, which are a little more. Bytes are free
when the free is requested, as in torch's count. States of a block are those that `torch/csrc/cuda/memory_snapshot.cpp`
writes: active_allocated, active_pending_free (in the docstring of `torch/cuda/memory.py` it is called
active_awaiting_free), inactive.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from simcore.errors import InputError, Problem
from simcore.validation.plain_pickle import unpickled
from simcore.validation.stack_frames import OTHER, group_of, group_of_category, said

__all__ = ["MAX_BYTES", "MAX_CURVE", "Dump", "read_dump"]

MAX_BYTES: Final = 2**29
"""Size of one file. Assumed: half of the size that is reported to crash the viewer's browser."""

MAX_CURVE: Final = 600
_TAKEN: Final = ("alloc",)
_GIVEN: Final = ("free_requested", "free", "free_completed")
_GROWN: Final = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True)
class Dump:
    """One device of a PyTorch memory snapshot: allocated bytes at its fullest recorded moment, and at its end.

    `device`: its number; `groups`: bytes by purpose (`stack_frames`), at the fullest moment, largest first;
    `reserved_bytes`: most that the allocator reserved while events were recorded. `num_events`: recorded events;
    `devices`: numbers of all devices of the file. `ours`: rankscope wrote it; `has_frames`: stack frames were recorded;
    `refused`: an allocation failed. `curve`: allocated bytes over the recorded events, the most of each of at most
    `MAX_CURVE` equal stretches, in order.
    """

    device: int
    peak_bytes: int
    end_bytes: int
    reserved_bytes: int
    groups: dict[str, int]
    num_events: int
    devices: tuple[int, ...]
    ours: bool
    has_frames: bool
    refused: bool
    curve: tuple[int, ...]


@dataclass(slots=True)
class _Life:
    """An allocation; `born` -1: before the window, `died` None: not in the window."""

    born: int
    died: int | None
    size: int
    source: dict[str, Any]


def read_dump(content: bytes, where: str) -> Dump:
    """Data of the device with the highest peak in a memory snapshot, from the file's bytes `content`.

    InputError, which names `where`, for other or damaged files. Runs no code of the file.
    """
    shape = _Shape(where)
    snapshot = shape.mapping(unpickled(content, where), "the file")
    missing = [key for key in ("segments", "device_traces") if key not in snapshot]
    if missing:
        shape.refuse(f"is no memory snapshot: it has no {' and no '.join(missing)}")
    segments = [shape.mapping(item, "a segment") for item in shape.list(snapshot["segments"], "segments")]
    traces = [shape.list(item, "a device's trace") for item in shape.list(snapshot["device_traces"], "device_traces")]
    numbers = sorted({shape.number(item, "device", "a segment") for item in segments}
                     | {number for number, trace in enumerate(traces) if trace})
    if not numbers:
        shape.refuse("is a memory snapshot of nothing: no segments and no events; was recording on?")
    dumps = [_Device(shape, number, segments, traces[number] if number < len(traces) else []).dump(
        ours="rankscope" in snapshot, devices=tuple(numbers)) for number in numbers]
    return max(dumps, key=lambda item: item.peak_bytes)


class _Device:
    """One device's segments and events."""

    def __init__(self, shape: _Shape, number: int, segments: list[dict[str, Any]], trace: list[Any]) -> None:
        self.shape, self.number = shape, number
        self.segments = [segment for segment in segments if shape.number(segment, "device", "a segment") == number]
        self.events = [shape.mapping(event, "an event") for event in trace]
        self.lives = self._lived()
        self.group_by_stack: dict[tuple[int, bool], str] = {}

    def dump(self, *, ours: bool, devices: tuple[int, ...]) -> Dump:
        change = [0] * (len(self.events) + 1)
        for life in self.lives:
            change[life.born + 1] += life.size
            if life.died is not None:
                change[life.died + 1] -= life.size
        sums = list(itertools.accumulate(change))
        peak = max(range(len(sums)), key=sums.__getitem__)
        has_frames = any(event.get("frames") for event in self.events)
        return Dump(self.number, sums[peak], sums[-1], self._reserved(), self._groups(peak - 1, has_frames=has_frames),
                    len(self.events), devices, ours, has_frames,
                    any(event.get("action") == "oom" for event in self.events), tuple(_highest(sums)))

    def _lived(self) -> list[_Life]:
        """Allocations of the window, and earlier ones that still exist or are freed in it."""
        lives: list[_Life] = []
        live: dict[int, _Life] = {}
        asked: set[int] = set()
        for at, event in enumerate(self.events):
            action = event.get("action")
            if action in _TAKEN:
                address = self.shape.number(event, "addr", "an event")
                if (lost := live.pop(address, None)) is not None:  # its free was not recorded
                    lost.died = at
                asked.discard(address)
                live[address] = _Life(at, None, self.shape.number(event, "size", "an event"), event)
                lives.append(live[address])
            elif action in _GIVEN:
                self._give(at, event, live, asked, lives)
        for address, block in self._blocks():
            if address not in live:
                size = block.get("requested_size", block.get("size"))
                lives.append(_Life(-1, None, self.shape.whole(size, "a block's size"), block))
        return lives

    def _give(self, at: int, event: dict[str, Any], live: dict[int, _Life], asked: set[int], lives: list[_Life]
              ) -> None:
        """Handles a free, which takes effect when it is requested; its completion is ignored."""
        address = self.shape.number(event, "addr", "an event")
        life = live.pop(address, None)
        if life is not None:
            life.died = at
        elif address not in asked and event["action"] != "free_completed":
            lives.append(_Life(-1, at, self.shape.number(event, "size", "an event"), {}))
        asked.add(address)

    def _blocks(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(address, block) of all blocks that are allocated at the end."""
        for segment in self.segments:
            address = self.shape.number(segment, "address", "a segment")
            for value in self.shape.list(segment.get("blocks", []), "a segment's blocks"):
                block = self.shape.mapping(value, "a block")
                if block.get("state") == "active_allocated":
                    yield address, block
                address += self.shape.number(block, "size", "a block")

    def _reserved(self) -> int:
        """Largest sum of segments, backwards from the end."""
        now = most = sum(self.shape.number(segment, "total_size", "a segment") for segment in self.segments)
        for event in reversed(self.events):
            if sign := _GROWN.get(said(event, "action"), 0):
                now -= sign * self.shape.number(event, "size", "an event")
                most = max(most, now)
        return most

    def _groups(self, at: int, *, has_frames: bool) -> dict[str, int]:
        """Bytes after event `at` by group, the largest first."""
        sums: Counter[str] = Counter()
        for life in self.lives:
            if life.born <= at and (life.died is None or life.died > at):
                sums[self._group(life, has_frames=has_frames)] += life.size
        return dict(sums.most_common())

    def _group(self, life: _Life, *, has_frames: bool) -> str:
        if "category" in life.source:
            return group_of_category(said(life.source, "category"))
        frames = self.shape.list(life.source.get("frames", []), "frames")
        if not frames and not has_frames:
            return OTHER
        key = (id(frames), life.born >= 0)  # equal stacks are one object in a snapshot
        if key not in self.group_by_stack:
            if not all(isinstance(frame, dict) for frame in frames):
                self.shape.refuse("frames: expected dictionaries")
            self.group_by_stack[key] = group_of(frames, recorded=has_frames and life.born >= 0)
        return self.group_by_stack[key]


def _highest(sums: Sequence[int]) -> Iterator[int]:
    """Most of each of at most `MAX_CURVE` equal stretches."""
    parts = min(MAX_CURVE, len(sums))
    for part in range(parts):
        yield max(sums[len(sums) * part // parts:len(sums) * (part + 1) // parts])


@dataclass(frozen=True)
class _Shape:
    """Checks of the file's values, which raise InputError."""

    where: str

    def refuse(self, message: str) -> NoReturn:
        raise InputError(Problem(self.where, message))

    def mapping(self, value: object, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.refuse(f"is no memory snapshot: {what}: expected a dictionary, got {_kind(value)}")
        return value

    def list(self, value: object, what: str) -> list[Any]:
        if not isinstance(value, list):
            self.refuse(f"is no memory snapshot: {what}: expected a list, got {_kind(value)}")
        return value

    def number(self, inside: dict[str, Any], key: str, what: str) -> int:
        return self.whole(inside.get(key), f"{what}'s {key}")

    def whole(self, value: object, what: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.refuse(f"is no memory snapshot: {what}: expected a whole number, got {_kind(value)}")
        return value


def _kind(value: object) -> str:
    return "nothing" if value is None else repr(value)[:40] if isinstance(value, (int, str)) else type(value).__name__
