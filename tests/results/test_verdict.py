"""Verdicts by the band of measured errors, below, across and above the limit."""

from __future__ import annotations

import random

import pytest

import small
from simcore.inputs.loading import changed
from simcore.results.verdict import SEVERITY, verdict_of
from simcore.simulate import simulate


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (90, 99, "fits"), (90, 100, "fits"), (99, 101, "unsure"), (100, 120, "unsure"), (101, 120, "oom")])
def test_the_band_decides(low: int, high: int, verdict: str) -> None:
    assert verdict_of([(low, high)], 100) == verdict


def test_the_fullest_rank_decides_for_each_end() -> None:
    assert verdict_of([(101, 101), (80, 90)], 100) == "oom"
    assert verdict_of([(95, 96), (80, 110)], 100) == "unsure"


def test_less_room_is_never_a_better_verdict() -> None:
    drawn = random.Random(7)
    for _ in range(500):
        bands = [tuple(sorted((drawn.randrange(200), drawn.randrange(200)))) for _ in range(drawn.randrange(1, 4))]
        words = [SEVERITY[verdict_of(bands, limit)] for limit in range(200, 0, -1)]  # type: ignore[arg-type]
        assert words == sorted(words)


@pytest.mark.parametrize("framework", small.FRAMEWORKS)
def test_a_simulated_job_is_unsure_where_its_band_contains_the_limit(framework: str) -> None:
    asked = small.scenario(framework, {"dp_shard": 4}, seq_len=2048)
    report = simulate(asked, timed=False)
    assert report.band_bytes is not None
    low, high = report.band_bytes
    assert low < (report.highest_bytes or 0) < high
    limits = {high: "fits", high - 1: "unsure", low: "unsure", low - 1: "oom"}
    found = {limit: simulate(changed(asked, {"limits.usable_memory": f"{limit} B"}), timed=False).verdict
             for limit in limits}
    assert found == limits
