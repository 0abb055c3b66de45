"""The median of repeats after warm-up; on a GPU between events, behind a head start, with cold caches."""

from __future__ import annotations

import pytest

from machines import TOLD, FakeCuda, fake_gpu
from simcore.calibration import stopwatch as file
from simcore.calibration.machine import Machine
from simcore.calibration.stopwatch import Stopwatch


def test_a_gpu_is_timed_by_its_own_clock() -> None:
    cuda, calls = FakeCuda(), []
    bench = fake_gpu(cuda)

    def call() -> None:
        calls.append(1)
        cuda.now += 0.5 if len(calls) <= bench.extent.warmup else 0.002 if len(calls) % 2 else 0.004

    assert bench.stopwatch.seconds(call) in (pytest.approx(0.002), pytest.approx(0.004))
    assert len(calls) == bench.extent.warmup + bench.extent.repeats


def test_every_repeat_finds_cold_caches_and_its_launch_done() -> None:
    cuda = FakeCuda()
    bench = fake_gpu(cuda)
    bench.stopwatch.seconds(lambda: None)
    assert cuda.flushed >= bench.extent.repeats * 2**28
    assert cuda.slept > 0


def test_what_is_made_ready_for_a_call_is_not_counted() -> None:
    cuda, given = FakeCuda(), list[int]()
    bench = fake_gpu(cuda)

    def prepare() -> int:
        cuda.now += 7.0
        return len(given)

    def call(number: int) -> None:
        given.append(number)
        cuda.now += 0.25

    assert bench.stopwatch.seconds_after(prepare, call) == pytest.approx(0.25)
    assert given == list(range(len(given)))  # each call got its own


def test_a_median_leaves_out_what_disturbed_one_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 10.0, 11.5, 20.0, 99.0])  # 1 s, 1.5 s, 79 s
    monkeypatch.setattr(file, "perf_counter", lambda: next(ticks))
    assert Stopwatch(Machine(None, "cpu", "x", 1, TOLD), 0, 3).seconds(lambda: None) == 1.5


def test_the_hosts_time_leaves_out_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0])
    monkeypatch.setattr(file, "perf_counter", lambda: next(ticks))
    cuda, waited = FakeCuda(), []
    monkeypatch.setattr(cuda, "synchronize", lambda: waited.append(1))
    watch = Stopwatch(fake_gpu(cuda).machine, 0, 1)
    assert watch.host_seconds(lambda: None) == 1.0
    assert len(waited) == 2
