"""Curves of collectives: the latency, the hop and the bandwidths that they were made from are found again."""

from __future__ import annotations

from typing import Any

import pytest

from machines import TOLD, FakeCuda, cpu_bench, fake_gpu
from simcore.calibration.ranks import Point, curves, fabric
from simcore.calibration.reading import NotMeasured
from simcore.hardware.topology import Link, load_topology
from simcore.timing.collective import collective_ns, wire_factor

NVLINK = load_topology("dgx-h100").node.nvlink
NAMES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv")


def modelled(ranks: int) -> list[Point]:
    assert NVLINK is not None
    model = NVLINK.model_copy(update={"curves": None})
    link = Link("nvlink", int(model.bandwidth), model.latency.si, ranks, 1, model)
    return [Point(name, ranks, payload, collective_ns(name, payload, ranks, link) / 1e9)
            for name in NAMES for payload in (2**12, 2**20, 2**28)]


def test_curves_of_the_cost_model_give_its_own_numbers_back() -> None:
    assert NVLINK is not None
    found = fabric([*modelled(2), *modelled(4), *modelled(8)], TOLD)
    told = {key: float(value.value.split()[0]) for key, value in found.items()}
    assert told["latency"] == pytest.approx(NVLINK.latency.si * 1e6, rel=0.02)
    assert told["hop_latency"] == pytest.approx(NVLINK.hop_latency.si * 1e6, rel=0.02)
    for name in NAMES:
        assert told[f"bus_bandwidth.{name}"] == pytest.approx(getattr(NVLINK.bus_bandwidth, name).si / 1e9, rel=0.01)


def test_bandwidths_are_those_of_the_largest_group() -> None:
    fast = [Point("all_gather", 4, size, 1e-5 + size * wire_factor("all_gather", 4) / 1e11) for size in (10**4, 10**8)]
    slow = [Point("all_gather", 2, size, 2e-5 + size * wire_factor("all_gather", 2) / 1e10) for size in (10**4, 10**8)]
    assert fabric([*slow, *fast], TOLD)["bus_bandwidth.all_gather"].value == "100 GB/s"


def test_one_gpu_has_no_curves() -> None:
    with pytest.raises(NotMeasured, match="one GPU"):
        curves(fake_gpu(FakeCuda()))


@pytest.mark.slow
def test_two_processes_run_every_collective_by_gloo() -> None:
    torch: Any = pytest.importorskip("torch")
    points = curves(cpu_bench(torch))
    assert {point.collective for point in points} == set(NAMES)
    assert {point.ranks for point in points} == {2}
    assert all(point.seconds > 0 for point in points)
    assert len({point.payload for point in points}) == 3
    assert {"latency", "hop_latency", "bus_bandwidth.send_recv"} <= set(fabric(points, TOLD))
