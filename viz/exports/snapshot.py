"""A report's memory as a snapshot of PyTorch's allocator, which `torch.cuda._memory_viz` and its web viewer open.

Comes in: a report with lifetimes (`simulate(..., detail=True, postings=MAX_POSTINGS)`). Goes out: the snapshot as plain
data, or the bytes of its pickle. A device of the file is a class of ranks, in the report's order.

[Note: snapshot]
The form is torch 2.13's (`torch/cuda/memory.py` `_snapshot`, `torch/csrc/cuda/memory_snapshot.cpp`): segments of blocks
that tile them, as they are when the step has ended, and events in order of time. The viewer is
`torch/utils/viz/MemoryViz.js`, whose unpickler knows protocols 2 to 4 and 32 opcodes: what is written is made of dicts,
lists, tuples, text, numbers and nothing else, with protocol 4 whatever Python's own default is.

Placement is ours: one segment a device, each tensor in the first gap that holds it, in blocks of 512 B (torch
`c10/core/AllocatorConfig.h`, kMinBlockSize) and a segment of whole 2 MiB. So addresses, gaps and the segment's size are
no answer about fragmentation; that is `reserved_bytes` of the report. Events carry the bytes that were asked for, as
torch's do, and their running sum is the report's allocated memory, its peak the report's to the byte.

What lies outside torch's allocator (the CUDA context, NCCL's buffers) is in no snapshot of torch's, and in none of
ours: as a block it would raise the peak above what torch counts. It is told under `rankscope`, a key that viewers pass
over.

Events are coloured by category. The viewer (MemoryViz.js, `annotate_snapshot`) fails on a file with categories none of
which is "unknown", because of a misspelt name; the event that makes the segment has that category, and no tensor.

Where the verdict is oom, an event `oom` stands before the first allocation that the device has no room for, as the
verdict counts room. A real job ends there; the file goes on, to show what would be needed.
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
"""The highest that the viewer reads; Python 3.14 writes 5 if nobody says."""

MAX_POSTINGS: Final = 200_000
"""Births and deaths in a file. Assumed: about 30 MB, a thirtieth of what is reported to end a browser (1 GB)."""

_BLOCK: Final = 512
_SEGMENT: Final = 2 * 2**20
_BASE: Final = 0x7F0000000000
_APART: Final = 1 << 40
"""A device begins at the next multiple of it from the base on, so that no address is used twice; all stay far below
2**53, where JavaScript's numbers end."""

_POOL: Final = (0, 0)
"""torch's own; others are of CUDA graphs and of MemPool."""

Event = dict[str, Any]


def pickled(report: Report) -> bytes:
    """The bytes of a snapshot's file."""
    return pickle.dumps(snapshot(report), protocol=PROTOCOL)


def snapshot(report: Report) -> dict[str, Any]:
    """The snapshot as plain data. ValueError: the report has no lifetimes."""
    classes = report.detail.classes if report.detail else ()
    if not classes or any(one.lifetimes is None for one in classes):
        raise ValueError(f"{report.name}: a report without lifetimes of allocations")
    kinds = report.detail.layers if report.detail else {}
    devices: list[tuple[dict[str, Any], list[Event]]] = []
    base = _BASE
    for rank, one in zip(report.ranks, classes, strict=True):
        devices.append(_device(len(devices), base, report, rank, one, kinds))
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
    """What of the report is not in its snapshot, or not as torch would tell it."""
    detail = report.detail
    told = ["simulated: addresses are by first fit; what lies outside torch's allocator is left out"]
    if detail is not None and detail.written_out < detail.num_microbatches:
        told.append(f"{detail.written_out} of {detail.num_microbatches} microbatches are written out, the others repeat"
                    " the steady ones")
    merged = sum(one.lifetimes.merged for one in detail.classes if one.lifetimes) if detail else 0
    if merged:
        told.append(f"{merged:,} allocations are not told by themselves, but by layer and category: a file holds"
                    f" {MAX_POSTINGS:,} births and deaths")
    if report.verdict == "oom" and all(_room(report, rank) < 0 for rank in report.ranks):
        told.append("the verdict is that of the highest draw; this is balanced routing, in which no allocation fails")
    return told


def whole_fits(report: Report) -> bool:
    """Whether microbatches are left out, and all of them would stay within `MAX_POSTINGS`, each tensor by itself."""
    detail = report.detail
    lives = [one.lifetimes for one in detail.classes if one.lifetimes] if detail else []
    if detail is None or detail.written_out == detail.num_microbatches or any(one.merged for one in lives):
        return False
    postings = sum(len(one.time_us) for one in lives)
    return postings * detail.num_microbatches <= MAX_POSTINGS * detail.written_out


def _device(number: int, base: int, report: Report, rank: RankReport, one: ClassDetail, kinds: dict[str, str]
            ) -> tuple[dict[str, Any], list[Event]]:
    """(segment, events)."""
    lives = one.lifetimes
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
    held = sum(block["size"] for block in live)
    return {
        "device": number, "address": base, "total_size": size, "allocated_size": held, "active_size": held,
        "requested_size": sum(block["requested_size"] for block in live), "stream": 0, "segment_type": "large",
        "segment_pool_id": _POOL, "is_expandable": False, "frames": [], "blocks": blocks}, events


def _first_fit(lives: Lifetimes) -> tuple[list[int], int]:
    """Where each allocation begins, and where the last one ever ended."""
    gaps, places = _Gaps(), [0] * len(lives.bytes)
    for row, is_birth in _steps(lives):
        size = _rounded(lives.bytes[row])
        if is_birth:
            places[row] = gaps.take(size)
        else:
            gaps.give(places[row], size)
    return places, gaps.end


def _steps(lives: Lifetimes) -> Iterator[tuple[int, bool]]:
    """(row, whether it is born): moments in order, at one moment deaths before births."""
    dying: dict[int, list[int]] = {}
    coming: dict[int, list[int]] = {}
    for row, (born, died) in enumerate(zip(lives.born, lives.died, strict=True)):
        coming.setdefault(born, []).append(row)
        if died >= 0:
            dying.setdefault(died, []).append(row)
    for moment in sorted({*coming, *dying}):
        yield from ((row, False) for row in dying.get(moment, ()))
        yield from ((row, True) for row in coming.get(moment, ()))


class _Gaps:
    """Free stretches below `end`, in order; neighbours are one."""

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
    """Pseudo stacks, innermost first: the tensor, the layer, the phase. Equal ones are one list, once in the file."""

    def __init__(self, lives: Lifetimes, kinds: dict[str, str]) -> None:
        self.lives, self.kinds = lives, kinds
        self.layers = {path: number for number, path in enumerate(kinds)}
        self.made: dict[tuple[int, str, int], list[dict[str, Any]]] = {}

    def of(self, row: int) -> list[dict[str, Any]]:
        owner, moment = self.lives.owner[row], self.lives.born[row]
        key = (owner, self.lives.phases[moment], self.lives.microbatches[moment])
        if key not in self.made:
            self.made[key] = self._make(*key)
        return self.made[key]

    def category(self, row: int) -> str:
        return self.lives.owners[self.lives.owner[row]][2]

    def _make(self, owner: int, phase: str, microbatch: int) -> list[dict[str, Any]]:
        layer, tensor, category = self.lives.owners[owner]
        where = f"{layer} ({self.kinds[layer]})" if layer in self.kinds else layer
        made = [(category, 0, tensor), ("layer", self.layers.get(layer, 0), where)]
        made.append(("before the step", 0, "at rest") if phase == "build" else ("microbatch", microbatch, phase))
        return [{"filename": file, "line": line, "name": name} for file, line, name in made]


def _events(lives: Lifetimes, addresses: list[int], stacks: _Stacks, room: int) -> Iterator[Event]:
    """A birth is `alloc`, a death `free_requested` and at once `free_completed`, which the viewer takes for one."""
    held, refused = 0, False
    for row, is_birth in _steps(lives):
        size, moment = lives.bytes[row], lives.born[row] if is_birth else lives.died[row]
        common = {"size": size, "stream": 0, "time_us": lives.time_us[moment], "frames": stacks.of(row),
                  "pool_id": _POOL}
        if is_birth and not refused and held + size > room >= 0:
            refused = True
            yield {"action": "oom", "device_free": max(0, room - held), **common}
        held += size if is_birth else -size
        for action in ("alloc",) if is_birth else ("free_requested", "free_completed"):
            yield {"action": action, "addr": addresses[row], "category": stacks.category(row), **common}


def _room(report: Report, rank: RankReport) -> int:
    """Bytes of tensors that the device has room for by the verdict; -1 where the rank fits.

    Blocks that do not fit together are taken as the same share of what is allocated at every moment.
    """
    if rank.peak is None or report.capacity_bytes is None or not rank.peak.allocated_bytes:
        return -1
    limit = int(report.capacity_bytes * report.scenario["limits"]["max_fill"])
    if rank.peak.device_bytes <= limit:
        return -1
    outside = sum(rank.peak.outside.values())
    return max(0, (limit - outside) * rank.peak.allocated_bytes // (rank.peak.device_bytes - outside))


def _blocks(lives: Lifetimes, base: int, places: list[int], size: int, stacks: _Stacks) -> Iterator[dict[str, Any]]:
    """What is alive when the step has ended, and the gaps between, up to the segment's end."""
    end = 0
    for row in sorted((row for row, died in enumerate(lives.died) if died < 0), key=places.__getitem__):
        if places[row] > end:
            yield _gap(base + end, places[row] - end)
        whole = _rounded(lives.bytes[row])
        yield {"address": base + places[row], "size": whole, "requested_size": lives.bytes[row],
               "state": "active_allocated", "frames": stacks.of(row)}
        end = places[row] + whole
    if size > end:
        yield _gap(base + end, size - end)


def _gap(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
