"""A report's memory as a snapshot of PyTorch's caching allocator, for `torch.cuda._memory_viz` and its web viewer.

Comes in: a report with lifetimes (`simulate(..., detail=True, postings=MAX_POSTINGS)`). Goes out: the snapshot as plain
data, or the bytes of its pickle. A device of the file is a class of ranks, in the report's order.

[Note: snapshot]
The format is that of torch 2.13 (`torch/cuda/memory.py` `_snapshot`, `torch/csrc/cuda/memory_snapshot.cpp`): segments
and the blocks that fill them at the end of the step, and events in order of time. The viewer is
`torch/utils/viz/MemoryViz.js`, whose unpickler knows protocols 2 to 4 and 32 opcodes: the file has only dicts, lists,
tuples, text and numbers, pickled with protocol 4 whatever Python's default is.

The placement is a model: one segment a device, each tensor in the first gap that is large enough, in blocks of 512 B
(torch `c10/core/AllocatorConfig.h`, kMinBlockSize) and a segment of whole 2 MiB. So addresses, gaps and the size of the
segment say nothing about fragmentation; `reserved_bytes` of the report does. Events have the requested bytes, as those
of torch do; their running sum is the report's allocated memory, with the same peak to the byte.

Memory outside the allocator (the CUDA context, NCCL's buffers) is in no snapshot of torch, and not in these: as a block
it would raise the peak above what torch counts. It is listed under `rankscope`, a key that viewers ignore.

Events are coloured by category. The viewer (MemoryViz.js, `annotate_snapshot`) fails on a file with categories of which
none is "unknown", because of a misspelt name; so the event that creates the segment has that category, and no tensor.

Where the likely peak is above the limit, an event `oom` comes before the first allocation for which the device has no
room. A real job ends there; the file continues, to show how much would be needed.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Final

from simcore.results.detail import ClassDetail, Lifetimes
from simcore.results.report import RankReport, Report

__all__ = ["MAX_POSTINGS", "notes", "pickled", "snapshot", "whole_fits"]

PROTOCOL: Final = 4
"""Highest pickle protocol that the viewer reads; the default of Python 3.14 is 5."""

MAX_POSTINGS: Final = 200_000
"""Most allocations and frees in a file. Assumed: about 30 MB; 1 GB is reported to crash browsers."""

_BLOCK: Final = 512
_SEGMENT: Final = 2 * 2**20
_BASE: Final = 0x7F0000000000
_APART: Final = 1 << 40
"""Each device begins at a multiple of it above the base, so that no address is used twice; all addresses stay far below
2**53, the largest exact integer of JavaScript."""

_POOL: Final = (0, 0)
"""Id of the default memory pool; CUDA graphs and MemPool have others."""

Event = dict[str, Any]


def pickled(report: Report) -> bytes:
    """Returns the bytes of the file of `snapshot` (all classes of ranks), a pickle.

    ValueError: the report has no lifetimes.
    """
    return pickle.dumps(snapshot(report), protocol=PROTOCOL)


def snapshot(report: Report) -> dict[str, Any]:
    """Returns the memory snapshot of all classes of ranks, one device each in the report's order, as plain data.

    Keys: `segments` (one a device), `device_traces` (a list of events a device), both as in torch's `_snapshot`
    ([Note: snapshot]), and `rankscope` (our own notes). ValueError: the report has no lifetimes.
    """
    classes = report.detail.classes if report.detail else ()
    if not classes or any(detail.lifetimes is None for detail in classes):
        raise ValueError(f"{report.name}: a report without lifetimes of allocations")
    kinds = report.detail.layers if report.detail else {}
    devices: list[tuple[dict[str, Any], list[Event]]] = []
    base = _BASE
    for rank, detail in zip(report.ranks, classes, strict=True):
        devices.append(_device(len(devices), base, report, rank, detail, kinds))
        base += -(-devices[-1][0]["total_size"] // _APART) * _APART
    return {
        "segments": [segment for segment, _ in devices],
        "device_traces": [events for _, events in devices],
        "rankscope": {"name": report.name, "notes": notes(report), "devices": [
            {"device": number, "ranks": list(rank.ranks), "outside": dict(rank.peak.outside) if rank.peak else {},
             "peak_allocated_bytes": rank.peak.allocated_bytes if rank.peak else 0}
            for number, rank in enumerate(report.ranks)]},
    }


def notes(report: Report) -> list[str]:
    """Returns a line of text for each thing in which the snapshot differs from one of torch."""
    detail = report.detail
    lines = ["simulated: addresses are by first fit; what lies outside torch's allocator is left out"]
    if detail is not None and detail.written_out < detail.num_microbatches:
        lines.append(f"{detail.written_out} of {detail.num_microbatches} microbatches are written out, the others "
                     "repeat the steady ones")
    merged = sum(ranks.lifetimes.merged for ranks in detail.classes if ranks.lifetimes) if detail else 0
    if merged:
        lines.append(f"{merged:,} allocations are not told by themselves, but by layer and category: a file holds"
                     f" {MAX_POSTINGS:,} births and deaths")
    if report.verdict == "oom" and all(_room(report, rank) < 0 for rank in report.ranks):
        lines.append("the verdict is that of the highest draw; this is balanced routing, in which no allocation fails")
    return lines


def whole_fits(report: Report) -> bool:
    """Tells whether microbatches are left out although all would stay within `MAX_POSTINGS`.

    False also if allocations are merged.
    """
    detail = report.detail
    lives = [ranks.lifetimes for ranks in detail.classes if ranks.lifetimes] if detail else []
    if detail is None or detail.written_out == detail.num_microbatches or any(life.merged for life in lives):
        return False
    postings = sum(len(life.time_us) for life in lives)
    return postings * detail.num_microbatches <= MAX_POSTINGS * detail.written_out


def _device(number: int, base: int, report: Report, rank: RankReport, detail: ClassDetail, kinds: dict[str, str]
            ) -> tuple[dict[str, Any], list[Event]]:
    """Returns (segment, events) of one class of ranks, whose segment begins at address `base`."""
    lives = detail.lifetimes
    assert lives is not None
    places, extent = _first_fit(lives)
    size = -(-extent // _SEGMENT) * _SEGMENT
    stacks = _Stacks(lives, kinds)
    events: list[Event] = [{
        "action": "segment_alloc", "addr": base, "size": size, "stream": 0, "time_us": 0, "frames": [],
        "pool_id": _POOL, "category": "unknown"}]
    events += _events(lives, [base + place for place in places], stacks, _room(report, rank))
    blocks = list(_blocks(lives, base, places, size, stacks))
    live = [block for block in blocks if block["state"] != "inactive"]
    live_bytes = sum(block["size"] for block in live)
    return {
        "device": number, "address": base, "total_size": size, "allocated_size": live_bytes,
        "active_size": live_bytes,
        "requested_size": sum(block["requested_size"] for block in live), "stream": 0, "segment_type": "large",
        "segment_pool_id": _POOL, "is_expandable": False, "frames": [], "blocks": blocks}, events


def _first_fit(lives: Lifetimes) -> tuple[list[int], int]:
    """Returns the offset of each allocation in bytes, and the highest end of any of them."""
    gaps, places = _Gaps(), [0] * len(lives.bytes)
    for row, is_birth in _steps(lives):
        size = _rounded(lives.bytes[row])
        if is_birth:
            places[row] = gaps.take(size)
        else:
            gaps.give(places[row], size)
    return places, gaps.end


def _steps(lives: Lifetimes) -> Iterator[tuple[int, bool]]:
    """Yields (row, whether it is allocated) in order of time; at one moment frees come before allocations."""
    frees: dict[int, list[int]] = {}
    births: dict[int, list[int]] = {}
    for row, (born, died) in enumerate(zip(lives.born, lives.died, strict=True)):
        births.setdefault(born, []).append(row)
        if died >= 0:
            frees.setdefault(died, []).append(row)
    for moment in sorted({*births, *frees}):
        yield from ((row, False) for row in frees.get(moment, ()))
        yield from ((row, True) for row in births.get(moment, ()))


class _Gaps:
    """Free ranges of addresses below `end`, in order; adjacent ranges are joined."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.end = 0

    def take(self, size: int) -> int:
        for at, start in enumerate(self.starts):
            if (left := self.sizes[start] - size) >= 0:
                del self.starts[at], self.sizes[start]
                if left:
                    self._keep(start + size, left)
                return start
        self.end += size
        return self.end - size

    def give(self, start: int, size: int) -> None:
        at = bisect_left(self.starts, start)
        if at < len(self.starts) and self.starts[at] == start + size:
            size += self.sizes.pop(self.starts.pop(at))
        if at and (before := self.starts[at - 1]) + self.sizes[before] == start:
            self.sizes[before] += size
        else:
            self._keep(start, size)

    def _keep(self, start: int, size: int) -> None:
        insort(self.starts, start)
        self.sizes[start] = size


def _rounded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


class _Stacks:
    """Artificial call stacks, innermost first: tensor, layer, phase. Equal stacks are one list, once in the file."""

    def __init__(self, lives: Lifetimes, kinds: dict[str, str]) -> None:
        self.lives, self.kinds = lives, kinds
        self.layers = {path: number for number, path in enumerate(kinds)}
        self.stacks: dict[tuple[int, str, int], list[dict[str, Any]]] = {}

    def of(self, row: int) -> list[dict[str, Any]]:
        owner, moment = self.lives.owner[row], self.lives.born[row]
        key = (owner, self.lives.phases[moment], self.lives.microbatches[moment])
        if key not in self.stacks:
            self.stacks[key] = self._make(*key)
        return self.stacks[key]

    def category(self, row: int) -> str:
        return self.lives.owners[self.lives.owner[row]][2]

    def _make(self, owner: int, phase: str, microbatch: int) -> list[dict[str, Any]]:
        layer, tensor, category = self.lives.owners[owner]
        where = f"{layer} ({self.kinds[layer]})" if layer in self.kinds else layer
        frames = [(category, 0, tensor), ("layer", self.layers.get(layer, 0), where)]
        frames.append(("before the step", 0, "at rest") if phase == "build" else ("microbatch", microbatch, phase))
        return [{"filename": file, "line": line, "name": name} for file, line, name in frames]


def _events(lives: Lifetimes, addresses: list[int], stacks: _Stacks, room: int) -> Iterator[Event]:
    """Yields `alloc` for an allocation, and for a free `free_requested` and `free_completed`, which viewers join."""
    allocated, refused = 0, False
    for row, is_birth in _steps(lives):
        size, moment = lives.bytes[row], lives.born[row] if is_birth else lives.died[row]
        common = {"size": size, "stream": 0, "time_us": lives.time_us[moment], "frames": stacks.of(row),
                  "pool_id": _POOL}
        if is_birth and not refused and allocated + size > room >= 0:
            refused = True
            yield {"action": "oom", "device_free": max(0, room - allocated), **common}
        allocated += size if is_birth else -size
        for action in ("alloc",) if is_birth else ("free_requested", "free_completed"):
            yield {"action": action, "addr": addresses[row], "category": stacks.category(row), **common}


def _room(report: Report, rank: RankReport) -> int:
    """Returns the bytes of tensors for which the device has room, as the verdict counts; -1 where the rank fits.

    Assumed: fragmentation is the same share of the allocated memory at every moment.
    """
    if rank.peak is None or report.capacity_bytes is None or not rank.peak.allocated_bytes:
        return -1
    limit = int(report.capacity_bytes * report.scenario["limits"]["max_fill"])
    if rank.peak.device_bytes <= limit:
        return -1
    outside = sum(rank.peak.outside.values())
    return max(0, (limit - outside) * rank.peak.allocated_bytes // (rank.peak.device_bytes - outside))


def _blocks(lives: Lifetimes, base: int, places: list[int], size: int, stacks: _Stacks) -> Iterator[dict[str, Any]]:
    """Yields the blocks of tensors that live at the end of the step and the gaps between, up to the segment's end."""
    end = 0
    for row in sorted((row for row, died in enumerate(lives.died) if died < 0), key=places.__getitem__):
        if places[row] > end:
            yield _gap(base + end, places[row] - end)
        block_bytes = _rounded(lives.bytes[row])
        yield {"address": base + places[row], "size": block_bytes, "requested_size": lives.bytes[row],
               "state": "active_allocated", "frames": stacks.of(row)}
        end = places[row] + block_bytes
    if size > end:
        yield _gap(base + end, size - end)


def _gap(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
