"""Mamba-2's kernels: those of mamba_ssm and causal_conv1d get what they ask for, and without them ours run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from machines import FakeCuda, cpu_bench, fake_gpu
from simcore.calibration import mamba
from simcore.calibration.reading import NotMeasured
from simcore.calibration.scan import chunked_scan
from simcore.calibration.sizes import sizes_of
from simcore.models.blocks import Mamba2

SEQ = 128


def block() -> Mamba2:
    found = sizes_of("nemotron-3-tiny").mamba
    assert found is not None
    return found


def mamba_ssm(torch: Any) -> Any:
    """As mamba_ssm 2.2 `ops/triton/ssd_combined.py` and causal_conv1d 1.5 declare them."""

    def mamba_chunk_scan_combined(x: Any, dt: Any, A: Any, B: Any, C: Any, chunk_size: int, D: Any = None) -> Any:  # noqa: N803
        assert D is None
        return chunked_scan(torch, x, dt, A, B, C, chunk=chunk_size)

    def causal_conv1d_fn(x: Any, weight: Any, bias: Any = None, *, activation: str) -> Any:
        assert activation == "silu"
        assert x.stride(1) == 1  # channels last
        padded = torch.nn.functional.pad(x, (weight.shape[1] - 1, 0))
        out = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=x.shape[1])
        return torch.nn.functional.silu(out)

    return SimpleNamespace(__version__="2.2.4", mamba_chunk_scan_combined=mamba_chunk_scan_combined,
                           causal_conv1d_fn=causal_conv1d_fn)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch: Any = pytest.importorskip("torch")
    monkeypatch.setattr(mamba, "optional", lambda name: mamba_ssm(torch))
    return torch


def test_mamba_ssm_scans_where_it_is(libraries: Any) -> None:
    bench, one = cpu_bench(libraries), block()
    parts = mamba._inputs(bench, one, SEQ)
    by, theirs = mamba._scanner(fake_gpu(FakeCuda()), one)
    _, ours = mamba._scanner(bench, one)
    assert by == "mamba_ssm 2.2.4"
    assert libraries.equal(theirs(*parts), ours(*parts))


def test_causal_conv1d_convolves_where_it_is(libraries: Any) -> None:
    bench, one = cpu_bench(libraries), block()
    x, weight, bias = bench.random(1, SEQ, one.conv_dim), bench.random(one.conv_dim, 4), bench.random(one.conv_dim)
    gpu = fake_gpu(FakeCuda())
    gpu.torch.nn = libraries.nn
    by, theirs = mamba._convolver(gpu, one)
    _, ours = mamba._convolver(bench, one)
    assert by == "causal_conv1d 2.2.4"
    assert libraries.allclose(theirs(x, weight, bias), ours(x, weight, bias), atol=1e-2)


def test_without_them_ours_run_and_are_named() -> None:
    bench = cpu_bench(pytest.importorskip("torch"))
    assert mamba._scanner(bench, block())[0] == "our own chunked scan in plain torch"
    assert mamba._convolver(bench, block())[0] == "torch's conv1d and silu"


def test_a_token_is_no_part_of_what_came_before_it() -> None:
    bench, one = cpu_bench(pytest.importorskip("torch")), block()
    x, weight, bias = bench.random(1, SEQ, one.conv_dim), bench.random(one.conv_dim, 4), bench.random(one.conv_dim)
    run = mamba._convolver(bench, one)[1]
    before = run(x, weight, bias)
    x[:, 50] += 1
    after = run(x, weight, bias)
    assert bench.torch.equal(before[..., :50], after[..., :50])
    assert not bench.torch.equal(before[..., 50:54], after[..., 50:54])


def test_a_model_without_mamba_has_no_scan() -> None:
    with pytest.raises(NotMeasured, match="no Mamba-2 layers"):
        next(iter(mamba.mamba_scan(cpu_bench(None, "llama-tiny"))))
