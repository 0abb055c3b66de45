"""Lengths drawn from a distribution: what they are, and that peaks are those of simulations at these lengths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import small
from simcore.inputs.training import Lengths, Observed
from simcore.placement.framework import Padding
from simcore.results.report import Report
from simcore.simulate import place, simulate
from simcore.simulation.random_lengths import at_length, drawn_lengths, longest

LENGTHS = {"mean": 200, "max": 1024, "seed": 5, "draws": 200}
MESH = {"dp_shard": 4}
ALONE = Padding()


def run(framework: str, lengths: Any, mesh: dict[str, int] | None = None, **given: Any) -> Report:
    asked = small.scenario(framework, mesh or MESH, lengths=lengths, **{"seq_len": 1024} | given)
    report = simulate(asked, timed=False)
    assert report.status == "ok", report.problems
    return report


def lengths_of(lengths: Any, padding: Padding = ALONE, mesh: dict[str, int] | None = None, **given: Any) -> Any:
    asked = small.scenario("megatron", mesh or MESH, lengths=lengths, **{"seq_len": 1024} | given)
    return drawn_lengths(asked, padding)


# ---- draws ----------------------------------------------------------------------------------------------------------
def test_lognormal_lengths_have_their_mean_and_scatter() -> None:
    drawn = longest(Lengths(mean=1000, max=10**8, sigma=0.5, draws=2**17), 1, 0)
    assert drawn.mean() == pytest.approx(1000, rel=0.01)
    assert np.log(drawn).std() == pytest.approx(0.5, rel=0.01)
    assert np.median(drawn) == pytest.approx(1000 * math.exp(-0.125), rel=0.01)


def test_uniform_lengths_end_at_the_longest() -> None:
    drawn = longest(Lengths(mean=900, max=1000, distribution="uniform", draws=20000), 1, 0)
    assert (drawn.min(), drawn.max()) == (800, 1000)
    assert drawn.mean() == pytest.approx(900, abs=1)


def test_observed_lengths_come_as_often_as_they_are_there() -> None:
    drawn = longest(Observed(observed=(30, 10, 20, 10), draws=20000), 1, 0)
    assert sorted(set(drawn.tolist())) == [10, 20, 30]
    assert (drawn == 10).mean() == pytest.approx(0.5, abs=0.01)


def test_the_longest_of_several_is_as_if_each_was_drawn() -> None:
    # P(longest of 3 <= 10) = (1/2)^3, of the 20 or less (3/4)^3.
    drawn = longest(Observed(observed=(10, 10, 20, 30), draws=2**17), 3, 0)
    assert (drawn == 10).mean() == pytest.approx(1 / 8, abs=0.005)
    assert (drawn <= 20).mean() == pytest.approx(27 / 64, abs=0.005)


def test_what_is_too_long_is_cut() -> None:
    batch, step = lengths_of({"observed": [10, 5000]}, mesh={"dp_shard": 64})
    assert batch.max == step.p50 == 1024
    assert longest(Lengths(mean=50, max=60, sigma=3.0), 1, 0).max() == 60


def test_lengths_are_padded_to_what_collator_and_layout_need() -> None:
    one = {"observed": [33]}
    assert lengths_of(one)[0].max == 33
    assert lengths_of(one, Padding(16, ""))[0].max == 48
    assert lengths_of(one, mesh={"dp_shard": 1, "cp": 2})[0].max == 36
    assert lengths_of(one, Padding(10, ""), {"tp": 4})[0].max == 40


def test_a_step_is_longer_than_a_microbatch() -> None:
    batch, step = lengths_of(LENGTHS, microbatches=8)
    assert batch.p50 < step.p50 <= step.p90 <= step.p99 <= step.max <= 1024
    assert lengths_of(LENGTHS, micro_batch_size=4)[0].p50 > batch.p50
    assert lengths_of(LENGTHS | {"seed": 6}, microbatches=8) != (batch, step)


# ---- what they do to memory -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("framework", small.FRAMEWORKS)
def test_peaks_are_those_of_fixed_lengths(framework: str) -> None:
    report = run(framework, LENGTHS)
    found = report.lengths
    assert found is not None
    for name in ("p50", "p99", "max"):
        fixed = simulate(small.scenario(framework, MESH, seq_len=getattr(found.step, name)), timed=False)
        assert fixed.peak_rank is not None
        assert fixed.peak_rank.peak is not None
        assert getattr(found.peak.allocated_bytes, name) == fixed.peak_rank.peak.allocated_bytes
        assert getattr(found.peak.device_bytes, name) == fixed.peak_rank.peak.device_bytes
    assert found.peak.device_bytes.p50 < found.peak.device_bytes.max == report.highest_bytes
    assert report.scenario["training"]["lengths"]["mean"] == 200


def test_the_verdict_is_that_of_the_longest() -> None:
    found = run("megatron", LENGTHS).lengths
    assert found is not None
    asked = small.scenario("megatron", MESH, lengths=LENGTHS, seq_len=1024)
    _, limit = simulate(at_length(asked, found.step.p50), timed=False).band_bytes or (0, 0)
    tight = asked.model_copy(update={"limits": asked.limits.model_copy(update={"usable_memory": f"{limit} B"})})
    report = simulate(tight, timed=False)
    assert report.lengths is not None
    at = {size: simulate(at_length(tight, size), timed=False).verdict for size in found.step.model_dump().values()}
    assert report.lengths.fits == tuple(sorted(size for size, verdict in at.items() if verdict == "fits"))
    assert report.lengths.fits
    assert report.verdict == at[found.step.max] != "fits"


def test_assumptions_name_distribution_and_collator() -> None:
    told = {a.what: a for a in run("megatron", LENGTHS | {"sigma": 0.5}).assumptions}
    assert told["training.lengths"].value == "lognormal, mean 200, at most 1024, sigma 0.5, seed 5, 200 steps"
    assert "multiples of 16" in told["padding"].value
    assert "sft.py" in told["padding"].source


def test_routing_may_be_drawn_too() -> None:
    report = run("megatron", LENGTHS | {"draws": 20}, {"dp_shard": 4, "ep": 4}, routing={"seed": 0, "draws": 20})
    assert report.drawn is not None
    assert report.lengths is not None
    assert report.lengths.peak.device_bytes.max == report.drawn.hottest.device_bytes.max


def test_nothing_is_drawn_to_place_and_refusals_stay() -> None:
    asked = small.scenario("megatron", MESH, lengths=LENGTHS)
    assert place(asked).ranks
    assert place(asked).lengths is None
    refused = simulate(small.scenario("megatron", {"dp_shard": 2, "cp": 2}, lengths=LENGTHS, seq_len=1023))
    assert refused.status == "illegal"


def test_at_a_length_all_else_stays() -> None:
    asked = small.scenario("megatron", MESH, lengths=LENGTHS, recompute="full")
    other = at_length(asked, 40)
    assert (other.training.seq_len, other.training.lengths, other.training.recompute) == (40, "fixed", "full")
    assert other.where("training") == asked.where("training")


@pytest.mark.parametrize(("lengths", "told"), [
    ({"mean": 9, "max": 3}, "mean <= max"), ({"mean": 2, "max": 9, "distribution": "uniform"}, "mean > max / 2"),
    ({"observed": []}, "observed"), ({"observed": [1], "mean": 3}, "does not go with")])
def test_mistakes_are_told(lengths: Any, told: str) -> None:
    with pytest.raises(Exception, match=told):
        small.scenario("megatron", lengths=lengths)
