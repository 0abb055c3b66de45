"""Rows for people to look through: they add up to what the report tells."""

from __future__ import annotations

import pytest

import small
from simcore.memory.inventory import holders, kinds_by_path, tensor_rows
from simcore.memory.ledger import MemoryPeak
from simcore.results.report import AtRest
from simcore.simulate import place, simulate


@pytest.mark.parametrize(("framework", "mesh"), [
    ("fsdp2", {"dp_shard": 4}), ("automodel", {"dp_shard": 4, "ep": 2}), ("megatron", {"dp_shard": 1, "tp": 2}),
    ("automodel", {"dp_shard": 2, "pp": 5}),
])
def test_rows_of_tensors_add_up_to_the_components(framework: str, mesh: dict[str, int]) -> None:
    plan = small.plan_of(framework, mesh)
    (rank, *_) = place(small.scenario(framework, mesh)).ranks
    sums: dict[str, list[int]] = {}
    for row in tensor_rows(plan):
        each = sums.setdefault(row.component, [0, 0, 0, 0])
        for n, more in enumerate((row.grads_bytes, row.optimizer_bytes, row.num_elements * row.num_layers,
                                  row.num_elements * row.num_layers * row.trainable)):
            each[n] += more
    sums.pop("buffer", None)

    def told(one: AtRest) -> list[int]:
        return [one.grads_bytes, one.optimizer_bytes, one.num_params, one.num_trainable_params]

    assert sums == {name: told(one) for name, one in rank.at_rest.items()}


def test_a_row_says_what_cuts_the_tensor() -> None:
    rows = {row.name: row for row in tensor_rows(small.plan_of("automodel", {"dp_shard": 4, "ep": 2}))}
    cuts = {cut for row in rows.values() if row.component == "routed_experts" for cut in row.cut}
    assert cuts == {"ep 2: dim 0", "expert_dp 2: dim 1"}
    assert all(row.cut == () for row in tensor_rows(small.plan_of("fsdp2")))


def test_whole_shapes_are_the_models() -> None:
    one, four = (tensor_rows(small.plan_of("fsdp2", {"dp_shard": n})) for n in (1, 4))
    assert [(row.name, row.shape, row.copies) for row in one] == [(row.name, row.shape, row.copies) for row in four]
    assert sum(row.num_elements for row in one) > sum(row.num_elements for row in four)


def test_owners_of_one_name_in_layers_of_one_kind_are_one_holder() -> None:
    top = (("a.0/x", "activation", 5), ("a.1/x", "activation", 5), ("a.2/x", "activation", 3), ("b/x", "buffer", 9),
           ("stage border 3/y", "input", 1))
    balance = MemoryPeak(23, "forward", "", "", 0, {}, {}, top, 0)
    found = holders(balance, {"a.0": "moe", "a.1": "moe", "a.2": "mamba", "b": "moe"})
    assert [(h.owner, h.layers, h.num_layers, h.category, h.bytes) for h in found] == [
        ("x", "moe", 2, "activation", 10), ("x", "moe", 1, "buffer", 9), ("x", "mamba", 1, "activation", 3),
        ("y", "between stages", 1, "input", 1)]


def test_every_byte_at_the_peak_has_a_holder() -> None:
    report = simulate(small.scenario("automodel", {"dp_shard": 2, "pp": 5}, microbatches=5), detail=True)
    assert report.detail is not None
    for rank, detail in zip(report.ranks, report.detail.classes, strict=True):
        assert rank.peak is not None
        assert sum(holder.bytes for holder in detail.holders) == rank.peak.allocated_bytes
        by_category: dict[str, int] = {}
        for holder in detail.holders:
            by_category[holder.category] = by_category.get(holder.category, 0) + holder.bytes
        assert by_category == rank.peak.by_category


def test_kinds_are_named_by_path() -> None:
    kinds = kinds_by_path(small.plan_of("fsdp2"))
    assert kinds["model.embeddings"] == "embedding"
    assert set(kinds.values()) >= {"mamba", "moe", "head", "loss"}
