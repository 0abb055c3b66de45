"""Assumptions of a report: values of ranks that differ are those of the rank with the most."""

from __future__ import annotations

import pytest

import small
from simcore.memory.outside_allocator import OutsideMemory
from simcore.simulate import simulate


@pytest.mark.parametrize("sizes", [(2**30, 2**20), (2**20, 2**30)])
def test_memory_outside_the_allocator_is_that_of_the_rank_with_most(monkeypatch: pytest.MonkeyPatch,
                                                                    sizes: tuple[int, int]) -> None:
    """Two pipeline stages with unequal NCCL buffers, in either order."""
    rest = iter(sizes)
    monkeypatch.setattr("simcore.simulation.report.outside", lambda setup, sent: (
        OutsideMemory("nccl", next(rest), "assumed", "a test"),))
    report = simulate(small.scenario("megatron", {"pp": 2}, model="llama-tiny", microbatches=2))
    assert [rank.peak.outside["nccl"] for rank in report.ranks if rank.peak] == list(sizes)
    assert [a.value for a in report.assumptions if a.what == "nccl"] == ["1.00 GiB"]
