"""A closer look changes no answer; what it adds goes through JSON."""

from __future__ import annotations

import small
from simcore.results.report import Report
from simcore.simulate import check, simulate


def test_a_closer_look_changes_nothing_else() -> None:
    asked = small.scenario("automodel", {"dp_shard": 4, "ep": 2}, microbatches=2)
    near = simulate(asked, detail=True)
    assert near.detail is not None
    assert near.model_copy(update={"detail": None}) == simulate(asked, series=True)
    assert simulate(asked).detail is None


def test_it_is_json() -> None:
    made = simulate(small.scenario("megatron", {"dp_shard": 2, "tp": 2}), detail=True)
    assert Report.model_validate_json(made.model_dump_json()) == made


def test_axes_give_every_ranks_place() -> None:
    made = simulate(small.scenario("automodel", {"dp_shard": 4, "ep": 2}), detail=True)
    assert made.detail is not None
    assert [(a.name, a.size, a.stride) for a in made.detail.axes] == [
        ("dp_shard", 4, 1), ("expert_dp", 2, 2), ("ep", 2, 1)]
    assert made.detail.ranks_per_node == 4
    assert len(made.detail.classes) == len(made.ranks)


def test_memory_by_part_is_the_same_memory() -> None:
    made = simulate(small.scenario("automodel", {"dp_shard": 2, "pp": 5}, microbatches=5), detail=True)
    assert made.detail is not None
    for rank, detail in zip(made.ranks, made.detail.classes, strict=True):
        assert rank.memory is not None
        assert detail.by_part is not None
        totals = [list(map(sum, zip(*series.values, strict=True))) for series in (rank.memory, detail.by_part)]
        assert totals[0] == totals[1]
        assert rank.memory.layers == detail.by_part.layers
        assert set(rank.memory.layers) - {""} <= set(made.detail.layers)
        assert any(rank.memory.layers)


def test_one_rank_alone_has_tensors_and_no_streams() -> None:
    made = simulate(small.scenario("fsdp2", {"dp_shard": 4}), rank=1, detail=True)
    assert made.detail is not None
    (only,) = made.detail.classes
    assert only.tensors
    assert only.spans == ()
    assert made.detail.end_s is None


def test_a_refusal_has_no_detail() -> None:
    refused = small.scenario("megatron", {"tp": 3})
    assert simulate(refused, detail=True) == check(refused)
