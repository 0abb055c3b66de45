"""Readings of a step: bytes from the allocator and seconds of each phase, on a GPU, or on a CPU in its place.

[Note: peaks of phases]
torch's allocator counts on the host, in the order in which the host asks. So a phase ends for it when the host has
issued it, and peaks of phases need no wait for the device. Times are between events of the stream.
"""

from __future__ import annotations

import time
from itertools import accumulate
from typing import Any

MAX_EVENTS = 400_000
"""Allocations that a snapshot holds; the oldest are dropped."""


class OnCuda:
    """Counters of torch's caching allocator and of the driver; `torch`: the module."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.cuda = torch, torch.cuda
        self.phases: dict[str, dict[str, float]] = {}
        self.marks: list[tuple[str, Any]] = []

    def record(self) -> None:
        """Begins the history of allocations."""
        self.cuda.memory._record_memory_history(max_entries=MAX_EVENTS, stacks="python")

    def stop_recording(self, path: Any) -> None:
        """Writes the snapshot and ends the history."""
        self.cuda.memory._dump_snapshot(str(path))
        self.cuda.memory._record_memory_history(enabled=None)

    def begin(self) -> None:
        self.cuda.synchronize()
        self.cuda.reset_peak_memory_stats()
        self.phases, self.marks = {}, [("", self._event())]

    def end_phase(self, name: str) -> None:
        self.marks.append((name, self._event()))
        phase = self.phases.setdefault(name, {"allocated_peak": 0, "reserved_peak": 0})
        phase["allocated_peak"] = max(phase["allocated_peak"], self.cuda.max_memory_allocated())
        phase["reserved_peak"] = max(phase["reserved_peak"], self.cuda.max_memory_reserved())
        self.cuda.reset_peak_memory_stats()

    def end(self) -> dict[str, Any]:
        """All readings of the step since `begin`."""
        self.cuda.synchronize()
        for (_, start), (name, stop) in zip(self.marks, self.marks[1:], strict=False):
            seconds = start.elapsed_time(stop) / 1e3
            self.phases[name]["seconds"] = self.phases[name].get("seconds", 0.0) + seconds
        free, total = self.cuda.mem_get_info()
        stats = self.cuda.memory_stats()
        return _told(self.phases) | {
            "allocated_end": self.cuda.memory_allocated(), "reserved_end": self.cuda.memory_reserved(),
            "device_end": total - free, "retries": stats.get("num_alloc_retries", 0)}

    def _event(self) -> Any:
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event


class OnCpu:
    """Births and deaths of storages of real tensors on a CPU, by `oracle.steps.tracker`, which is active."""

    def __init__(self, tracker: Any) -> None:
        self.tracker, self.phases, self.at, self.since = tracker, {}, 0, 0.0

    def record(self) -> None:
        """There is no history here."""

    def stop_recording(self, path: Any) -> None:
        """There is no snapshot here."""

    def begin(self) -> None:
        self.phases, self.at, self.since = {}, len(self.tracker.events), time.perf_counter()

    def end_phase(self, name: str) -> None:
        sums = [0, *accumulate(change for _, change in self.tracker.events)]
        phase = self.phases.setdefault(name, {"allocated_peak": 0, "reserved_peak": 0, "seconds": 0.0})
        peak = max(phase["allocated_peak"], *sums[self.at:])
        phase |= {"allocated_peak": peak, "reserved_peak": peak,
                  "seconds": phase["seconds"] + time.perf_counter() - self.since}
        self.phases[name], self.at, self.since = phase, len(self.tracker.events), time.perf_counter()

    def end(self) -> dict[str, Any]:
        """As of a GPU; the device holds what is allocated."""
        now = sum(change for _, change in self.tracker.events)
        return _told(self.phases) | {"allocated_end": now, "reserved_end": now, "device_end": now, "retries": 0}


def _told(phases: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {"phases": phases, "seconds": sum(phase["seconds"] for phase in phases.values()),
            **{name: max(phase[name] for phase in phases.values()) for name in ("allocated_peak", "reserved_peak")}}
