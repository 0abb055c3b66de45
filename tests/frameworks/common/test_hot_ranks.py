"""Load of the fullest rank: what it is taken from, when it counts, and what it does to the upper end of a band."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks.common.hot_ranks import LIKELY, fullest_load
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.simulate import simulate

MEASURED = Path(__file__).parents[2] / "truth/measured"
LOADS: list[dict[str, Any]] = json.loads((MEASURED / "expert_loads.json").read_text())
MODEL = {"config": "nemotron-3-nano-30b-a3b", "overrides": {
    "hybrid_override_pattern": "MEEEEE*E", "num_hidden_layers": 8, "vocab_size": 8192}}


def _report(framework: str, routing: Any, ep: int = 4, **options: Any) -> Report:
    etp = {"etp": 1} if framework == "megatron" else {}
    report = simulate(small.scenario(framework, {"dp_shard": 4, "ep": ep, **etp}, model=MODEL, routing=routing,
                                     seq_len=4096, options=options))
    assert report.status == "ok", report.problems
    return report


def test_loads_are_of_measured_rows() -> None:
    known = {json.loads(line)["id"] for path in MEASURED.glob("mcore-golden-*.jsonl")
             for line in path.read_text().splitlines()}
    assert {row["id"] for row in LOADS} <= known
    assert len(LOADS) > 50
    assert all(low["load"] <= high["load"] for low, high in pairwise(LOADS))


def test_the_fullest_of_many_ranks_is_fuller_than_that_of_few() -> None:
    loads = [fullest_load(small.prepared("megatron", {"dp_shard": 8, "ep": ep, "etp": 1})[0], share)
             for ep in (1, 2, 8) for share in (LIKELY, 0.9)]
    assert loads[:2] == [1, 1]
    assert loads[2] < loads[4]
    assert loads[3] < loads[5]
    assert loads[5] == pytest.approx(np.quantile([row["load"] for row in LOADS], 0.9 ** (1 / 8)))


def test_a_hot_rank_raises_the_upper_end_of_a_band_alone() -> None:
    given, even = _report("megatron", "auto"), _report("megatron", "balanced")
    mine, theirs = given.ranks[0].peak, even.ranks[0].peak
    assert mine
    assert theirs
    assert mine.band_bytes[1] > theirs.band_bytes[1]
    assert mine.model_copy(update={"band_bytes": (mine.band_bytes[0], theirs.band_bytes[1])}) == theirs
    (assumed,) = (one for one in given.assumptions if one not in even.assumptions)
    assert (assumed.what, "the verdict counts it" in assumed.value) == ("hot ranks", True)


def test_a_job_fits_only_if_its_fullest_rank_does() -> None:
    """A limit between both ends of the band: of balanced experts it fits, of a router left alone none knows."""
    given, even = (_report("megatron", routing) for routing in ("auto", "balanced"))
    ends = [report.ranks[0].peak.band_bytes[1] for report in (given, even) if report.ranks[0].peak]
    limits = {"usable_memory": f"{sum(ends) // 2} B"}
    told = [simulate(parse_scenario(parse_document(json.dumps(report.scenario | {"limits": limits}), "limited.json")))
            for report in (given, even)]
    assert [report.verdict for report in told] == ["unsure", "fits"]


def test_the_end_is_at_least_what_the_fullest_rank_needs() -> None:
    load = fullest_load(small.prepared("megatron", {"dp_shard": 4, "ep": 4, "etp": 1})[0])
    peak, hot = (_report("megatron", routing).ranks[0].peak for routing in ("auto", {"imbalance": load}))
    assert peak
    assert hot
    assert peak.band_bytes[1] >= hot.reserved_bytes + sum(hot.outside.values())


@pytest.mark.parametrize("framework", ["megatron", "megatron_fsdp", "automodel"])
def test_frameworks_say_the_load(framework: str) -> None:
    job, table = small.prepared(framework, {"dp_shard": 4, "ep": 4} | ({} if framework == "automodel" else {"etp": 1}))
    assert table.fullest_load == fullest_load(job) > 1


def test_forced_balance_and_experts_that_stay_on_their_rank_are_no_question() -> None:
    forced = _report("automodel", "auto", fake_balanced_gate=True)
    alone = _report("megatron", "auto", ep=1)
    assert "hot ranks" not in {one.what for report in (forced, alone) for one in report.assumptions}
