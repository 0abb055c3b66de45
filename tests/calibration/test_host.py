"""Time that the host is busy with a kernel."""

from __future__ import annotations

from typing import Any

import pytest

from machines import TOLD, FakeCuda, cpu_bench, fake_gpu
from simcore.calibration import host
from simcore.calibration.reading import NotMeasured
from simcore.units import parse_quantity


def test_an_operator_takes_as_long_as_a_chain_divided_by_its_kernels() -> None:
    torch: Any = pytest.importorskip("torch")
    value = host.operator(cpu_bench(torch))
    assert 1e-7 < parse_quantity(value.value, "s") < 1e-3
    assert value.kind == "measured"
    assert value.source.endswith(TOLD)


def test_the_shortest_kernel_is_one_of_a_row() -> None:
    torch: Any = pytest.importorskip("torch")
    bench = cpu_bench(torch)
    one = bench.random(1)
    alone = bench.stopwatch.seconds(one.neg)
    assert 0 < parse_quantity(host.shortest(bench).value, "s") < 20 * alone


def test_modules_are_those_of_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotMeasured, match="no GPU"):
        host.module(cpu_bench(None))
    monkeypatch.setattr(host, "optional", lambda name: None)
    with pytest.raises(NotMeasured, match="TransformerEngine is not there"):
        host.module(fake_gpu(FakeCuda()))
