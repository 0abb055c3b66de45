"""Bytes that cross the link to the host in a step: closed forms."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.results.report import Report
from simcore.simulate import simulate

LLAMA = "llama-tiny"
RANKS = 4
BOTH = {"optimizer": "host", "params": "host"}


def report(framework: str, away: dict[str, str], **given: Any) -> Report:
    return simulate(small.scenario(framework, {"dp_shard": RANKS}, model=LLAMA, offload=away, **given), timed=False)


def copied(framework: str, away: dict[str, str], **given: Any) -> dict[tuple[str, str, str], int]:
    """Bytes by direction, phase and dtype."""
    rows = [row for row in report(framework, away, **given).ranks[0].traffic if row.collective == "copy"]
    assert all(row.network_bytes == row.nvlink_bytes == 0 for row in rows)
    found: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row.axis, row.phase, row.dtype)
        found[key] = found.get(key, 0) + row.payload_bytes
    return found


def part() -> int:
    """A rank's elements."""
    count = small.plan_of("zero2", {"dp_shard": RANKS}, model=LLAMA).graph.count()
    assert count % (2 * RANKS) == 0
    return count // RANKS


def test_nothing_is_copied_where_nothing_is_away() -> None:
    for framework in ("zero2", "zero3", "fsdp1"):
        assert copied(framework, {}) == {}


@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_gradients_go_in_fp32_and_parameters_come_back_in_16_bits(stage: str) -> None:
    assert copied(stage, {"optimizer": "host"}, microbatches=1) == {
        ("to_host", "backward", "fp32"): 4 * part(), ("to_device", "optimizer", "bf16"): 2 * part()}


def test_accumulation_on_the_host_moves_whole_tensors() -> None:
    """All that touch the part: each microbatch sends them, each but the first fetches them before."""
    found = copied("zero2", {"optimizer": "host"}, microbatches=3)
    sent, fetched = found["to_host", "backward", "bf16"], found["to_device", "backward", "bf16"]
    assert sent / 3 == fetched / 2 > 2 * part()
    assert found["to_host", "backward", "fp32"] == 4 * part()


@pytest.mark.parametrize("microbatches", [1, 3])
def test_zero3_sends_each_part_and_gets_it_back(microbatches: int) -> None:
    found = copied("zero3", {"optimizer": "host"}, microbatches=microbatches)
    assert found["to_host", "backward", "bf16"] == found["to_device", "backward", "bf16"] == 2 * part() * microbatches
    assert found["to_host", "backward", "fp32"] == 4 * part()
    assert found["to_device", "optimizer", "bf16"] == 2 * part()


def test_parameters_on_the_host_come_whenever_they_are_gathered() -> None:
    """And the update is a copy inside the host."""
    options = {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0,
               "stage3_prefetch_bucket_size": 0}
    found = copied("zero3", BOTH, microbatches=2, options=options)
    assert found["to_device", "forward", "bf16"] == 2 * 2 * part()
    assert ("to_device", "optimizer", "bf16") not in found


def test_the_cpu_takes_the_time_of_its_memory() -> None:
    """A step with the optimizer there is longer, and the more the more often gradients go there."""
    steps = []
    for away in ({}, {"optimizer": "host"}):
        time = simulate(small.scenario("zero3", {"dp_shard": RANKS}, model="llama-3.2-3b", offload=away)).time
        assert time is not None
        steps.append(time.step_s)
    assert steps[1] > 2 * steps[0]


def test_fsdp1_moves_what_rests_there() -> None:
    """fp32 parts before each gather, of a layer twice; fp32 gradients after each reduction."""
    found = copied("fsdp1", {"params": "host", "gradients": "host", "optimizer": "host"}, microbatches=1)
    assert found["to_device", "forward", "fp32"] == found["to_host", "backward", "fp32"] == 4 * part()
    assert 0 < found["to_device", "backward", "fp32"] < 4 * part()
