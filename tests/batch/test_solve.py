"""Limits of a quantity: at the limit a scenario fits, next to it it does not, and all in between were no answer."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.batch.solve import keys_of, limit_of
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.limit import Quantity
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
    assert limit.possible <= (limit.likely or 0) <= limit.value
    assert limit.beyond == limit.value - 1
    assert limit.beyond_verdict == verdicts[limit.value - 1]
    assert limit.keys == {"mesh.dp_shard": limit.value}


def test_the_largest_micro_batch_is_what_trying_all_of_them_gives() -> None:
    asked = roomy("fsdp2", 40, microbatches=2)
    limit = limit_of(asked, "micro_batch")
    assert limit.value is not None
    assert limit.value > 2
    verdicts = [verdict_at(asked, "micro_batch", size) for size in range(1, limit.value + 2)]
    assert verdicts[:-1] == ["fits"] * limit.value
    assert verdicts[-1] != "fits"
    assert limit.keys == {"training.micro_batch_size": limit.value, "training.global_batch_size": 16 * limit.value}


def test_the_longest_sequence_is_a_multiple_that_context_and_tensor_parallelism_can_cut() -> None:
    asked = roomy("megatron", 40, {"dp_shard": 2, "cp": 2, "tp": 2})
    limit = limit_of(asked, "sequence")
    assert limit.value is not None
    assert limit.value % 256 == 0
    assert verdict_at(asked, "sequence", limit.value) == "fits"
    assert verdict_at(asked, "sequence", limit.value + 256) == limit.beyond_verdict != "fits"


def test_gpus_that_a_layout_cannot_have_are_gaps() -> None:
    """Expert parallelism over 4 ranks needs their multiples."""
    asked = changed(small.scenario("automodel", {"dp_shard": 4, "ep": 4}, model="nemotron-3-nano-30b-a3b",
                                   recompute="full"), {})
    limit = limit_of(asked, "gpus")
    assert limit.value is not None
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
    fewest = limit_of(asked, "gpus").value or 0
    assert limit_of(asked, "gpus", between=(fewest, 64)).value == fewest
    assert limit_of(asked, "gpus", between=(fewest + 3, 64)).value == fewest + 3
    assert limit_of(asked, "gpus", between=(1, fewest - 1)).value is None
