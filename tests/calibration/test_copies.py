"""Copies between a GPU and its host: a latency and a rate each way."""

from __future__ import annotations

import pytest

from machines import TOLD, FakeCuda, cpu_bench, fake_gpu
from simcore.calibration.copies import host_link
from simcore.calibration.reading import NotMeasured


def test_a_line_gives_latency_and_rates() -> None:
    values = host_link(fake_gpu(FakeCuda()))
    assert {key: value.value for key, value in values.items()} == {
        "to_device": "50 GB/s", "to_host": "50 GB/s", "latency": "8 us"}
    assert all(TOLD in value.source and value.kind == "fitted" for value in values.values())


def test_without_a_gpu_there_is_none() -> None:
    with pytest.raises(NotMeasured, match="no GPU"):
        host_link(cpu_bench(None))
