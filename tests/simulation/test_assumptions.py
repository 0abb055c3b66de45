"""Assumptions of a report: values of ranks that differ are those of the rank with the most."""

from __future__ import annotations

import json

import pytest

import small
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
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


def test_flushes_are_told_untimed_where_cache_reaches_the_end_of_the_device() -> None:
    """One byte more than the allocator may reserve beside what is outside, that much, and too little for the step."""
    asked = small.scenario("fsdp2", {"dp_shard": 2}, model="llama-tiny", seq_len=2048)
    peak = simulate(asked).ranks[0].peak
    assert peak is not None
    most = peak.reserved_band_bytes[1] + sum(peak.outside.values())
    told = []
    for size in (most + 1, most, peak.band_bytes[0] - 1):
        tree = {**json.loads(asked.model_dump_json(exclude_unset=True)), "limits": {"usable_memory": f"{size} B"}}
        report = simulate(parse_scenario(parse_document(json.dumps(tree), "x.json")))
        told.append((report.verdict, [one.kind for one in report.assumptions if one.what == "time.step_s"]))
    assert told == [("fits", []), ("fits", ["assumed"]), ("oom", [])]
