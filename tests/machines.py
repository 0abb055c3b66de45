"""Machines to calibrate: one that PyTorch runs on here, and a GPU that is not there but answers as torch would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from simcore.calibration.bench import Bench, extent_of
from simcore.calibration.machine import Machine
from simcore.calibration.sizes import sizes_of
from simcore.calibration.stopwatch import Stopwatch

TOLD = "some machine, torch 2.13.0, 2026-01-02"


def bench_of(machine: Machine, model: str = "nemotron-3-tiny") -> Bench:
    extent = extent_of(machine, quick=True)
    return Bench(machine, sizes_of(model), extent, Stopwatch(machine, extent.warmup, extent.repeats))


def cpu_bench(torch: Any, model: str = "nemotron-3-tiny") -> Bench:
    return bench_of(Machine(torch, "cpu", "x", 2, TOLD), model)


class FakeEvent:
    """Its time is the clock's when it was recorded."""

    def __init__(self, clock: FakeCuda) -> None:
        self.clock, self.at = clock, -1.0

    def record(self) -> None:
        self.at = self.clock.now

    def synchronize(self) -> None:
        assert self.at >= 0

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1e3


class FakeCuda:
    """`now` is the GPU's clock in seconds; a test moves it on. `free` bytes fall by those of other processes."""

    def __init__(self, capability: tuple[int, int] = (9, 0), total: int = 84_942_979_072) -> None:
        self.now, self.capability, self.total, self.free = 0.0, capability, total, total - 600_000_000
        self.slept, self.flushed = 0, 0

    def is_available(self) -> bool:
        return True

    def get_device_name(self, _index: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def get_device_capability(self, _index: int) -> tuple[int, int]:
        return self.capability

    def device_count(self) -> int:
        return 1

    def mem_get_info(self) -> tuple[int, int]:
        return self.free, self.total

    def synchronize(self) -> None: ...

    def empty_cache(self) -> None: ...

    def _sleep(self, cycles: int) -> None:
        self.slept += cycles
        self.now += 1e-3

    def Event(self, *, enable_timing: bool) -> FakeEvent:  # noqa: N802 - torch's name
        assert enable_timing
        return FakeEvent(self)


class FakeTensor:
    """A flat one that knows how many bytes it has, and how long a copy into it takes."""

    def __init__(self, cuda: FakeCuda, size: int) -> None:
        self.cuda, self.size = cuda, size

    def zero_(self) -> None:
        self.cuda.flushed += self.size
        self.cuda.now += 1e-4

    def copy_(self, source: FakeTensor, *, non_blocking: bool) -> None:
        assert non_blocking
        assert source.size == self.size
        self.cuda.now += 8e-6 + self.size / 50e9


def fake_torch(cuda: FakeCuda) -> Any:
    """As much of torch as runs without kernels."""
    return SimpleNamespace(
        __version__="2.9.0", version=SimpleNamespace(cuda="12.8"), cuda=cuda, int8="int8",
        empty=lambda size, dtype, **where: FakeTensor(cuda, size))


def fake_gpu(cuda: FakeCuda) -> Bench:
    return bench_of(Machine(fake_torch(cuda), "cuda", "NVIDIA H100 80GB HBM3", 1, TOLD))
