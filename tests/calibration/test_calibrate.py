"""The whole way, on a machine whose kernels are invented: what is measured, what is left, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from machines import TOLD, FakeCuda, fake_gpu
from simcore.calibration import calibrate as file
from simcore.calibration import host
from simcore.calibration.bench import Bench
from simcore.calibration.calibrate import Calibration, calibrate
from simcore.calibration.reading import NotMeasured, Reading, Value
from simcore.hardware.topology import load_topology

DGX = load_topology("dgx-h100")


def invented(kernel: str) -> Any:
    """Readings of a machine that reaches a quarter of the peaks."""

    def measure(_bench: Bench) -> Iterator[Reading]:
        peak, rate = DGX.device.products.si / 4, DGX.device.memory_bandwidth.si / 4
        for flops, moved in ((10**12, 10**9), (10**10, 10**9)):
            yield Reading(kernel, "invented", str(flops), "bf16", flops, moved, flops / peak + moved / rate)

    return measure


def refused(_bench: Bench) -> Any:
    raise NotMeasured("no such library")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A GPU where products run, scans do not, and nothing else is known to torch."""
    monkeypatch.setattr(file, "KERNELS", {"gemm": invented("gemm"), "mamba_scan": refused})
    monkeypatch.setattr(host, "operator", lambda bench: Value("7 us", "measured", f"torch.mul; {TOLD}"))
    bench = fake_gpu(FakeCuda())
    monkeypatch.setattr(Bench, "random", lambda bench, *shape, **how: FakeNumber())
    return bench


class FakeNumber:
    def neg(self) -> None: ...


def run(bench: Bench) -> tuple[Calibration, list[str]]:
    lines: list[str] = []
    return calibrate(bench, DGX, lines.append), lines


def test_what_could_be_measured_is_by_its_key(bench: Bench) -> None:
    done, _ = run(bench)
    assert {key: value.value for key, value in done.efficiency.items() if key.startswith("kernels")} == {
        "kernels.gemm.compute": "25%", "kernels.gemm.memory": "25%"}
    assert done.efficiency["host.operator"].value == "7 us"
    assert {key for key in done.topology if key.startswith("node.host_link")} == {
        "node.host_link.to_device", "node.host_link.to_host", "node.host_link.latency"}
    assert len(done.readings) == 2


def test_what_could_not_has_a_reason(bench: Bench) -> None:
    done, _ = run(bench)
    assert done.reasons["kernels.mamba_scan"] == "no such library"
    assert done.reasons["node.nvlink"] == "one GPU"
    assert "wait for one another" in done.reasons["host.collective"]
    assert "whole steps" in done.reasons["overlap"]


def test_an_error_of_a_library_leaves_the_other_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bench: Bench) -> Any:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(host, "operator", broken)
    done, lines = run(bench)
    assert done.reasons["host.operator"] == "OSError: libcudart.so.13: cannot open shared object file"
    assert "host.operator" not in done.efficiency
    assert any(line.startswith("host.operator: not measured: OSError") for line in lines)
    assert "node.host_link.latency" in done.topology


def test_every_part_tells_a_line(bench: Bench) -> None:
    _, lines = run(bench)
    assert "kernels.gemm.compute: 25%" in lines
    assert "kernels.mamba_scan: not measured: no such library" in lines


def test_all_of_it_is_one_json_object(bench: Bench) -> None:
    done, _ = run(bench)
    told = json.loads(done.as_json(TOLD))
    assert told["machine"] == TOLD
    assert told["efficiency"]["kernels.gemm.compute"]["value"] == "25%"
    assert [reading["flops"] for reading in told["readings"]] == [10**12, 10**10]
