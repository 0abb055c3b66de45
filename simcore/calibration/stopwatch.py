"""Time of a call: the median of repeats after warm-up, by CUDA events on a GPU, by the clock on a CPU."""

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
"""More than the L2 cache of any GPU that is described here (126 MB on Blackwell): in training inputs are not cached."""
_HEAD_START: Final = 2_000_000
"""Cycles, about a millisecond, that keep the GPU busy until the host has issued the call."""


@dataclass(frozen=True)
class Stopwatch:
    """Timer of calls on `machine`: the first `warmup` calls are not counted, the median of `repeats` is the result."""

    machine: Machine
    warmup: int
    repeats: int
    _cache: list[Any] = field(default_factory=list, repr=False)

    def seconds(self, call: Call) -> float:
        """Seconds of one call on an idle device, with cold caches on a GPU."""
        return self.seconds_after(lambda: None, lambda _none: call())

    def seconds_after(self, prepare: Call, call: Callable[[Any], object]) -> float:
        """Seconds of `call` on the result of `prepare`, which is called before each repeat and not timed."""
        once = self._on_gpu if self.machine.is_gpu else self._on_cpu
        times = [once(partial(call, prepare())) for _ in range(self.warmup + self.repeats)]
        return median(times[self.warmup:])

    def host_seconds(self, call: Call) -> float:
        """Seconds that the host needs to issue one call; on a GPU it does not wait for the device to finish."""
        for _ in range(self.warmup):
            call()
        self.wait()
        return median(self._issued(call) for _ in range(self.repeats))

    def wait(self) -> None:
        """Waits until the GPU has finished all issued work; returns at once on a CPU."""
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
        """Seconds with flushed caches, as triton's do_bench (triton 3 `testing.py`).

        The wait before hides the host's time.
        """
        cuda = self.machine.torch.cuda
        if not self._cache:
            self._cache.append(self.machine.torch.empty(_CACHE_BYTES, dtype=self.machine.torch.int8, device="cuda"))
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        self._cache[0].zero_()
        cuda._sleep(_HEAD_START)  # torch has no public function for this; its own tests of streams use it
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
