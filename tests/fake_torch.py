"""As much of torch as `tests/truth/on_gpu` asks for: a GPU that is not there, whose allocator and clock are invented.

`made` stands for every maker of a step: forward takes 3 GiB, backward 1 GiB more, the first optimizer's step 2 GiB that
stay. A case named in the variable OUT_OF_MEMORY fails in forward.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import recorded

GIB = 2**30
__version__ = "2.13.0+fake"
version = SimpleNamespace(cuda="13.0")
int8 = bfloat16 = float32 = "a type"


class OutOfMemoryError(RuntimeError):
    """torch's own."""


class _Memory:
    def _record_memory_history(self, **_: object) -> None: ...

    def _dump_snapshot(self, path: str) -> None:
        Path(path).write_bytes(pickle.dumps(recorded.step()))


class _Event:
    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = cuda.now

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: _Event) -> float:
        return (end.at - self.at) * 1e3


class _Cuda:
    """`allocated`: bytes now; `peak`: since it was reset; `now`: seconds."""

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = 0
        self.now = 0.0
        self.memory = _Memory()

    def take(self, size: int, seconds: float = 0.0) -> None:
        self.allocated += size
        self.peak, self.now = max(self.peak, self.allocated), self.now + seconds
        self.reserved = max(self.reserved, self.allocated + GIB)

    def is_available(self) -> bool:
        return True

    def get_device_name(self, _index: int) -> str:
        return "NVIDIA H200"

    def get_device_capability(self, _index: int) -> tuple[int, int]:
        return 9, 0

    def device_count(self) -> int:
        return 1

    def synchronize(self) -> None: ...

    def empty_cache(self) -> None: ...

    def _sleep(self, _cycles: int) -> None: ...

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    def max_memory_reserved(self) -> int:
        return self.reserved

    def memory_allocated(self) -> int:
        return self.allocated

    def memory_reserved(self) -> int:
        return self.reserved

    def mem_get_info(self) -> tuple[int, int]:
        return 140 * GIB - self.reserved, 140 * GIB

    def memory_stats(self) -> dict[str, int]:
        return {"num_alloc_retries": 0}

    def Event(self, **_: object) -> _Event:  # noqa: N802 - torch's name
        return _Event()


cuda = _Cuda()


class _Number:
    def __mul__(self, _other: float) -> Self:
        return self

    def requires_grad_(self, _grad: bool) -> Self:
        return self

    def neg(self) -> None:
        cuda.now += 2e-6

    def zero_(self) -> None: ...


def randn(*_: object, **__: object) -> _Number:
    return _Number()


empty = randn


class _Profile:
    def __init__(self, **_: object) -> None:
        self.begin = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def step(self) -> None: ...

    def export_chrome_trace(self, path: str) -> None:
        kernel = {"ph": "X", "cat": "kernel", "name": "nvjet_hsh_128x256", "ts": 10, "dur": 60}
        step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100}
        Path(path).write_text(json.dumps({"traceEvents": [step, kernel]}), encoding="utf-8")


profiler = SimpleNamespace(profile=_Profile, schedule=lambda **_: None,
                           ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda"))


class _Loss:
    def backward(self) -> None:
        cuda.take(GIB, 0.2)
        cuda.take(-3 * GIB)


class _Made:
    """A step; its first optimizer's step leaves states."""

    def __init__(self, fails: bool) -> None:
        self.optimizer, self.fails, self.has_states = self, fails, False
        cuda.take(4 * GIB)

    def batch(self) -> tuple[None, None]:
        return None, None

    def loss(self, _tokens: None, _labels: None) -> _Loss:
        if self.fails:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
        cuda.take(3 * GIB, 0.1)
        return _Loss()

    def step(self) -> None:
        if not self.has_states:
            cuda.take(2 * GIB)
        self.has_states = True
        cuda.take(0, 0.05)

    def zero_grad(self, *, set_to_none: bool) -> None:
        assert set_to_none
        cuda.take(-GIB)


def made(scenario: dict[str, Any], torch: Any, device: str) -> _Made:
    """The maker of every case."""
    assert torch.cuda is cuda
    assert device == "cuda"
    return _Made(os.environ.get("OUT_OF_MEMORY", "none") == scenario["framework"])
