"""Limits of a quantity: at the limit a scenario fits, next to it it does not, and all in between were no answer."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.batch import solve
from simcore.batch.solve import keys_of, limit_of
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.limit import Quantity
from simcore.results.report import Report
from simcore.simulate import simulate


def roomy(framework: str, gib: float, mesh: dict[str, int] | None = None, **given: Any) -> Scenario:
    asked = small.scenario(framework, mesh or {"dp_shard": 8}, model="llama-3.2-3b", seq_len=1024, **given)
    return changed(asked, {"limits.usable_memory": f"{gib} GiB"})


def verdict_at(asked: Scenario, quantity: Quantity, value: int) -> str | None:
    return simulate(changed(asked, keys_of(asked, quantity, value)), timed=False).verdict


@pytest.mark.parametrize("framework", ["fsdp2", "zero3", "megatron"])
def test_the_fewest_gpus_are_what_trying_all_of_them_gives(framework: str) -> None:
    asked = roomy(framework, 30)
    limit = limit_of(asked, "gpus")
    verdicts = {ranks: verdict_at(asked, "gpus", ranks) for ranks in range(1, 17)}
    assert limit.value == min(ranks for ranks, verdict in verdicts.items() if verdict == "fits")
    assert limit.possible == min(ranks for ranks, verdict in verdicts.items() if verdict in ("fits", "unsure"))
    assert isinstance(limit.value, int)
    assert sorted(ranks for ranks in (limit.possible, limit.likely, limit.value) if isinstance(ranks, int)) == [
        limit.possible, limit.likely, limit.value]
    assert limit.beyond == limit.value - 1
    assert limit.beyond_verdict == verdicts[limit.value - 1]
    assert limit.keys == {"mesh.dp_shard": limit.value}


def test_the_largest_micro_batch_is_what_trying_all_of_them_gives() -> None:
    asked = roomy("fsdp2", 40, microbatches=2)
    limit = limit_of(asked, "micro_batch")
    assert isinstance(limit.value, int)
    assert limit.value > 2
    verdicts = [verdict_at(asked, "micro_batch", size) for size in range(1, limit.value + 2)]
    assert verdicts[:-1] == ["fits"] * limit.value
    assert verdicts[-1] != "fits"
    assert limit.keys == {"training.micro_batch_size": limit.value, "training.global_batch_size": 16 * limit.value}


def test_the_longest_sequence_is_a_multiple_that_context_and_tensor_parallelism_can_cut() -> None:
    asked = roomy("megatron", 40, {"dp_shard": 2, "cp": 2, "tp": 2})
    limit = limit_of(asked, "sequence")
    assert isinstance(limit.value, int)
    assert limit.value % 256 == 0
    assert verdict_at(asked, "sequence", limit.value) == "fits"
    assert verdict_at(asked, "sequence", limit.value + 256) == limit.beyond_verdict != "fits"


def test_gpus_that_a_layout_cannot_have_are_gaps() -> None:
    """Expert parallelism over 4 ranks needs their multiples."""
    asked = changed(small.scenario("automodel", {"dp_shard": 4, "ep": 4}, model="nemotron-3-nano-30b-a3b",
                                   recompute="full"), {})
    limit = limit_of(asked, "gpus")
    assert isinstance(limit.value, int)
    assert limit.value % 4 == 0
    assert limit.beyond == limit.value - 4


def test_nothing_fits_and_nothing_is_legal_differ() -> None:
    never = limit_of(roomy("fsdp2", 1), "micro_batch")
    assert (never.value, never.problem, never.beyond_verdict) == (None, "", "oom")
    refused = limit_of(small.scenario("fsdp2", {"dp_shard": 4, "ep": 3}), "micro_batch")
    assert refused.value is None
    assert refused.num_simulated == 0
    assert "ep" in refused.problem


def test_a_range_bounds_what_is_tried() -> None:
    asked = roomy("fsdp2", 30)
    fewest = limit_of(asked, "gpus").value
    assert isinstance(fewest, int)
    assert limit_of(asked, "gpus", between=(fewest, 64)).value == fewest
    assert limit_of(asked, "gpus", between=(fewest + 3, 64)).value == fewest + 3
    assert limit_of(asked, "gpus", between=(1, fewest - 1)).value is None


def test_the_largest_global_batch_of_stages_is_what_trying_all_of_them_gives() -> None:
    """PyTorch's stages hold something of every microbatch."""
    asked = changed(roomy("automodel", 40, {"pp": 2, "dp_shard": 2}, microbatches=4, method="lora"),
                    {"model": "llama-3-8b"})
    limit = limit_of(asked, "global_batch")
    assert isinstance(limit.value, int)
    verdicts = {size: verdict_at(asked, "global_batch", size) for size in range(4, limit.value + 3, 2)}
    assert limit.value == max(size for size, verdict in verdicts.items() if verdict == "fits")
    assert limit.beyond == limit.value + 2
    assert limit.beyond_verdict == verdicts[limit.value + 2]
    assert limit.keys == {"training.global_batch_size": limit.value}


def test_batches_between_which_stages_refuse_others_have_a_limit() -> None:
    """Interleaved stages take microbatches in groups of as many as there are stages, here 3."""
    asked = small.scenario("megatron", {"pp": 3, "dp_shard": 2}, model={
        "config": "llama-3-8b", "overrides": {"num_hidden_layers": 12}}, pipeline={"virtual_stages": 2})
    limit = limit_of(asked, "global_batch", between=(0, 100))
    assert limit.value == 96


def test_microbatches_that_hold_nothing_have_no_limit_that_was_found() -> None:
    limit = limit_of(roomy("fsdp2", 40), "global_batch")
    assert (limit.value, limit.beyond, limit.why) == (2**20, None, "")


def test_a_neighbour_says_what_decides_there() -> None:
    limit = limit_of(roomy("fsdp2", 40, microbatches=2), "micro_batch")
    assert isinstance(limit.beyond, int)
    report = simulate(changed(roomy("fsdp2", 40, microbatches=2), keys_of(
        roomy("fsdp2", 40, microbatches=2), "micro_batch", limit.beyond)), timed=False)
    assert report.peak_rank
    assert report.peak_rank.peak
    assert limit.why.startswith(f"in {report.peak_rank.peak.phase}, activation ")


def test_a_neighbour_that_is_refused_says_why() -> None:
    asked = roomy("automodel", 60, {"dp_shard": 4, "ep": 4})
    asked = changed(asked, {"model": "qwen3-30b-a3b", "training.method": "lora"})
    limit = limit_of(asked, "gpus")
    assert (limit.value, limit.beyond, limit.beyond_verdict) == (4, 3, None)
    assert limit.why.startswith("refused: ")
    assert "ep" in limit.why


def with_verdicts(monkeypatch: pytest.MonkeyPatch, length: range, verdict: str) -> None:
    """Simulations of some sequence lengths get another verdict."""
    def simulated(scenario: Scenario, **given: Any) -> Report:
        report = simulate(scenario, **given)
        is_other = scenario.training.seq_len in length
        return report.model_copy(update={"verdict": verdict, "host": None}) if is_other else report

    monkeypatch.setattr(solve, "simulate", simulated)


def test_a_longer_sequence_that_fits_moves_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = roomy("fsdp2", 40)
    plain = limit_of(asked, "sequence")
    assert isinstance(plain.value, int)
    assert plain.exceptions == ()
    island = range(2 * plain.value, 3 * plain.value)
    with_verdicts(monkeypatch, island, "fits")
    limit = limit_of(asked, "sequence")
    assert limit.value in island
    assert isinstance(limit.value, int)
    assert limit.value + 256 >= island.stop
    assert limit.beyond == limit.value + 256
    assert plain.beyond in limit.exceptions
    assert limit_of(asked, "sequence", checked=False).value == plain.value


def test_a_hole_within_the_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = roomy("fsdp2", 40)
    plain = limit_of(asked, "sequence")
    assert isinstance(plain.value, int)
    hole = range(plain.value * 3 // 10, plain.value * 45 // 100)
    with_verdicts(monkeypatch, hole, "oom")
    limit = limit_of(asked, "sequence")
    assert limit.value == plain.value
    assert limit.exceptions
    assert set(limit.exceptions) <= set(hole)
