"""Attention: causal whoever runs it, and flash-attn where it is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from machines import FakeCuda, cpu_bench, fake_gpu
from simcore.calibration import attention as file
from simcore.calibration.attention import attention, attention_flash2
from simcore.calibration.reading import NotMeasured


def plain(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention of q, k, v [1, tokens, heads, width], as textbooks define it."""
    scores = torch.einsum("zihd,zjhd->zhij", q, k) / q.shape[-1]**0.5
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    return torch.einsum("zhij,zjhd->zihd", scores.masked_fill(later, float("-inf")).softmax(-1), v)


def test_what_is_timed_is_causal_attention() -> None:
    torch: Any = pytest.importorskip("torch")
    bench = cpu_bench(torch)
    q, k, v = (bench.random(1, 32, 4, 16, dtype="float32") for _ in range(3))
    out = file._sdpa(bench, "FLASH_ATTENTION")(q, k, v).transpose(1, 2)
    assert torch.allclose(out, plain(torch, q, k, v), atol=1e-4)


def test_flash_attn_runs_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch")
    calls: list[bool] = []

    def flash_attn_func(q: Any, k: Any, v: Any, dropout_p: float = 0.0, *, causal: bool = False) -> Any:
        calls.append(causal and dropout_p == 0)
        return plain(torch, q, k, v)

    flash = SimpleNamespace(__version__="2.8.3", flash_attn_func=flash_attn_func)
    monkeypatch.setattr(file, "optional", lambda name: flash)
    bench = cpu_bench(torch)
    monkeypatch.setattr(type(bench.machine), "is_gpu", property(lambda machine: True))
    monkeypatch.setattr(type(bench.stopwatch), "_on_gpu", lambda watch, call: watch._on_cpu(call))
    readings = list(attention_flash2(bench))
    assert {reading.by for reading in readings} == {"flash-attn 2.8.3"}
    assert {reading.shape.endswith("backward") for reading in readings} == {True, False}
    assert all(calls)


def test_cudnns_needs_a_gpu_and_a_model_with_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotMeasured, match="needs a GPU"):
        attention(cpu_bench(None))
    gpu = fake_gpu(FakeCuda())
    backends = SimpleNamespace(CUDNN_ATTENTION="cudnn")
    gpu.torch.nn = SimpleNamespace(attention=SimpleNamespace(SDPBackend=backends))
    object.__setattr__(gpu.sizes, "core", None)
    with pytest.raises(NotMeasured, match="no attention"):
        next(iter(attention(gpu)))
