"""Buckets of a rank: which tensors are together, and what a rank keeps of them, as megatron-core has it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import fsdp_truth
import small
from checkout import ROOT
from simcore.frameworks.megatron_fsdp.buckets import bucket_padding, exact_in_buckets, rank_buckets

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/megatron_fsdp/core-0.16.1.json").read_text("utf-8"))
GLM5: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/models/glm5-main-2026-08-22.json").read_text("utf-8"))[
    "buckets"]
MESH = {"dp_shard": 4, "ep": 2}


@pytest.mark.parametrize("case", TRUTH["buckets"], ids=lambda case: "-".join(
    f"{key}{case.get(key, 0)}" for key in ("family", "tp", "ep", "lora")))
def test_buckets_are_the_real_ones(case: dict[str, Any]) -> None:
    """Their order and sizes, and the shapes in them."""
    assert not fsdp_truth.differs_in_buckets(case)


@pytest.mark.parametrize("row", GLM5, ids=lambda row: f"rank{row['case']['rank']}")
def test_buckets_of_glm5_are_those_of_main(row: dict[str, Any]) -> None:
    """Those with an indexer, whole on each tp rank, and those without one."""
    case, degrees = row["case"], {axis: row["case"].get(axis, 1) for axis in ("tp", "cp", "ep", "etp")}
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 8 // degrees["tp"] // degrees["cp"], **degrees},
                         rank=case["rank"], model={"config": case["preset"], "overrides": case["fields"]},
                         version="main 2026-08-22", options={"bucket_size": 40_000_000})
    found = [[one.unit, one.axis == "expert_dp", one.chunked.chunk, one.numel, one.shard] for one in rank_buckets(plan)]
    assert found == row["buckets"]


def test_every_tensor_is_in_one_bucket() -> None:
    plan = small.plan_of("megatron_fsdp", MESH)
    held = Counter(member for bucket in rank_buckets(plan) for member in bucket.members)
    owned = {(layer, number): p.used_copies for layer in plan.layers for number, p in enumerate(plan.of_layer(layer))
             if not p.spec.is_buffer}
    assert held == owned


@pytest.mark.parametrize(("version", "units"), [("core 0.16.1", False), ("main 2026-08-22", True)])
def test_mamba_layers_are_units_on_main_alone(version: str, units: bool) -> None:
    """mcore_fsdp_adapter.py, fsdp_unit_modules."""
    plan = small.plan_of("megatron_fsdp", MESH, version=version)
    outside = {layer for bucket in rank_buckets(plan) if bucket.unit < 0 for layer, _ in bucket.members}
    mamba = {layer for layer in plan.layers if any("mixer" in p.spec.name for p in plan.of_layer(layer))}
    assert mamba
    assert (mamba & outside == set()) if units else mamba < outside


@pytest.mark.parametrize("rank", range(8))
def test_a_rank_keeps_its_part_of_every_bucket(rank: int) -> None:
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 4, "tp": 2, "ep": 2, "etp": 1}, rank=rank)
    params, trained, masters = bucket_padding(plan)
    owned = [p for layer in plan.layers for p in plan.of_layer(layer) if not p.spec.is_buffer]
    assert params + sum(p.rest_bytes for p in owned) == sum(2 * bucket.shard for bucket in rank_buckets(plan))
    assert 2 * trained == 2 * masters == params


OUTER: dict[str, Any] = {"version": "main 2026-08-22", "options": {"outer_dp_sharding_strategy": "optim"}}


def test_copies_that_share_the_optimizer_hold_its_states_once() -> None:
    """Two copies over two ranks each, experts over two and one: every rank has parameters of half a model."""
    mesh = {"dp_shard": 2, "dp_replicate": 2, "ep": 2}
    held = [exact_in_buckets(small.plan_of("megatron_fsdp", mesh, rank=rank, **OUTER)) for rank in range(4)]
    for name, rest in small.plan_of("megatron", {}).at_rest().items():
        assert sum(one[name].num_params for one in held) == 2 * rest.num_params
        assert sum(one[name].optimizer_bytes for one in held) == 12 * rest.num_params
    for rank in range(4):
        plan = small.plan_of("megatron_fsdp", mesh, rank=rank, **OUTER)
        _, trained, masters = bucket_padding(plan)
        owned = [p for layer in plan.layers for p in plan.of_layer(layer) if not p.spec.is_buffer]
        assert trained + sum(p.local for p in owned) == sum(bucket.shard for bucket in rank_buckets(plan))
        assert masters + sum(dict(p.states)["master_param"] for p in owned) // 4 == sum(
            bucket.shard // 2 for bucket in rank_buckets(plan))


def test_all_ranks_together_hold_the_model_once() -> None:
    plans = [small.plan_of("megatron_fsdp", MESH, rank=rank) for rank in range(4)]
    held = [exact_in_buckets(plan) for plan in plans]
    whole = small.plan_of("megatron", {}).at_rest()
    for name, rest in whole.items():
        assert sum(one[name].num_params for one in held) == rest.num_params
        assert sum(one[name].optimizer_bytes for one in held) == 12 * rest.num_params
        assert sum(one[name].grads_bytes for one in held) == 4 * rest.num_params
