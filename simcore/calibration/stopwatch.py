"""How long a call takes: the median of repeats after warm-up, by CUDA events on a GPU, by the clock on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final

from simcore.calibration.machine import Machine

__all__ = ["Call", "Stopwatch"]

Call = Callable[[], object]

_CACHE_BYTES: Final = 2**28
"""More than the L2 cache of any GPU that is described here (126 MB on Blackwell): training finds its inputs cold."""
_HEAD_START: Final = 2_000_000
"""Cycles, about a millisecond, for which the GPU is kept busy so that the host has issued the call before it starts."""


@dataclass(frozen=True)
class Stopwatch:
    """`warmup` calls are not counted, of `repeats` the median is taken."""

    machine: Machine
    warmup: int
    repeats: int
    _cache: list[Any] = field(default_factory=list, repr=False)

    def seconds(self, call: Call) -> float:
        """Of one call, alone on the device, with cold caches on a GPU."""
        return self.seconds_after(lambda: None, lambda _none: call())

    def seconds_after(self, prepare: Call, call: Callable[[Any], object]) -> float:
        """The same of a call with what `prepare` gives it, made anew each time and not counted."""
        once = self._on_gpu if self.machine.is_gpu else self._on_cpu
        times = [once(partial(call, prepare())) for _ in range(self.warmup + self.repeats)]
        return median(times[self.warmup:])

    def host_seconds(self, call: Call) -> float:
        """For which the host is busy with one call; on a GPU it does not wait for what it issued."""
        for _ in range(self.warmup):
            call()
        self.wait()
        return median(self._issued(call) for _ in range(self.repeats))

    def wait(self) -> None:
        """Until the GPU has done all that was issued."""
        if self.machine.is_gpu:
            self.machine.torch.cuda.synchronize()

    def _issued(self, call: Call) -> float:
        seconds = self._on_cpu(call)
        self.wait()
        return seconds

    def _on_cpu(self, call: Call) -> float:
        begin = perf_counter()
        call()
        return perf_counter() - begin

    def _on_gpu(self, call: Call) -> float:
        """As triton's do_bench flushes the cache (triton 3 `testing.py`); the wait before hides the host's time."""
        cuda = self.machine.torch.cuda
        if not self._cache:
            self._cache.append(self.machine.torch.empty(_CACHE_BYTES, dtype=self.machine.torch.int8, device="cuda"))
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        self._cache[0].zero_()
        cuda._sleep(_HEAD_START)  # torch has no public way to do it; its own tests of streams use this
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
