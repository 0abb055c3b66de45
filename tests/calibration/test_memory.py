"""GPU memory that a process takes, and memory that the allocator reserves for a probe."""

from __future__ import annotations

from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import Any

import pytest

from machines import FakeCuda, cpu_bench, fake_gpu
from simcore.calibration import memory
from simcore.calibration.bench import Bench
from simcore.calibration.memory import allocator, device_memory
from simcore.calibration.reading import NotMeasured
from simcore.hardware.topology import load_topology

DGX = load_topology("dgx-h100")
CONTEXT, SEGMENT = 550_000_000, 2**21


class FakeProcesses:
    """A second process that takes its context when it starts and gives it back when it ends."""

    sentinel = -1

    def __init__(self, cuda: FakeCuda, taken: int, *, fails: bool = False) -> None:
        self.cuda, self.taken, self.fails, self.told = cuda, taken, fails, list[str]()

    def get_context(self, method: str) -> Any:
        assert method == "spawn"
        return self

    def Pipe(self) -> tuple[Any, str]:  # noqa: N802 - a name of multiprocessing
        return SimpleNamespace(poll=lambda: not self.fails, recv=lambda: SEGMENT, send=self.told.append), "there"

    def Process(self, target: object, args: tuple[object, ...]) -> Any:  # noqa: N802 - a name of multiprocessing
        assert target is memory._hold
        assert args == ("there",)
        return self

    def start(self) -> None:
        self.cuda.free -= self.taken

    def join(self) -> None:
        assert self.told == ["done"]
        self.cuda.free += self.taken


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "wait", lambda things, seconds: things)


def beside(taken: int, **gpu: int) -> tuple[Bench, FakeCuda]:
    cuda = FakeCuda(total=gpu.get("total", 84_942_979_072))
    bench = fake_gpu(cuda)
    bench.torch.multiprocessing = FakeProcesses(cuda, taken)
    return bench, cuda


def test_a_context_is_what_another_process_takes_but_for_its_tensors_segment() -> None:
    bench, cuda = beside(CONTEXT + SEGMENT)
    before = cuda.free
    values = device_memory(bench, DGX)
    assert values["context"].value == f"{CONTEXT} B"
    assert values["usable"].value == "84942979072 B"
    assert cuda.free == before  # the other process has ended


def test_memory_that_others_freed_meanwhile_is_no_context() -> None:
    with pytest.raises(NotMeasured, match="freed by others"):
        device_memory(beside(-10)[0], DGX)


def test_another_process_that_fails_is_told_and_ended() -> None:
    bench, cuda = beside(CONTEXT)
    bench.torch.multiprocessing = FakeProcesses(cuda, CONTEXT, fails=True)
    before = cuda.free
    with pytest.raises(NotMeasured, match="could not use the GPU"):
        device_memory(bench, DGX)
    assert cuda.free == before


def test_a_gpu_of_another_size_is_another_gpu() -> None:
    with pytest.raises(NotMeasured, match="more than NVIDIA H100"):
        device_memory(beside(CONTEXT, total=2**38)[0], DGX)


def test_a_probe_is_what_it_adds() -> None:
    bench = fake_gpu(FakeCuda())
    stats = iter([{"allocated_bytes.all.current": 5, "reserved_bytes.all.current": 10, "segment.all.current": 1},
                  {"allocated_bytes.all.current": 25, "reserved_bytes.all.current": 110, "segment.all.current": 5}])
    bench.torch.cuda.memory_stats = lambda: next(stats)
    assert allocator(bench) == {"allocated_bytes": 20, "reserved_bytes": 100, "segment": 4}


def test_a_cpu_has_neither() -> None:
    for measure in (lambda: device_memory(cpu_bench(None), DGX), lambda: allocator(cpu_bench(None))):
        with pytest.raises(NotMeasured, match="no GPU"):
            measure()


@pytest.mark.slow
def test_a_process_without_a_gpu_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real measurement, where torch has no GPU: it ends without waiting."""
    torch: Any = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    bench = fake_gpu(FakeCuda())
    bench.torch.multiprocessing = torch.multiprocessing
    monkeypatch.setattr(memory, "wait", wait)
    with pytest.raises(NotMeasured, match="could not use the GPU"):
        device_memory(bench, DGX)
