"""Adapters under Megatron-FSDP: frozen and trained buckets, and when they are gathered, against its own pipelines."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fsdp_truth
import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.megatron_fsdp.buckets import rank_buckets
from simcore.simulate import simulate

HERE = ROOT / "tests/truth/megatron_fsdp"
MAIN = "main 2026-08-22"
CASES: list[dict[str, Any]] = [
    case for case in json.loads((HERE / "main-2026-08-22.json").read_text("utf-8"))["steps"] if "plain" in case]
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(f"{k}={v}" for k, v in case.items() if k != "found"))
def test_a_step_with_adapters_is_the_real_one(case: dict[str, Any]) -> None:
    """Frozen buckets are gathered like others; only adapters' are filled, reduced and dropped."""
    assert not fsdp_truth.differs_in_step(case)


LORA: dict[str, Any] = {"version": MAIN, "method": "lora", "model": "llama-tiny"}


def test_only_adapters_have_gradients_and_states() -> None:
    """All ranks together: the frozen model in 16 bits once; of adapters weights, gradients and states."""
    rest = small.plan_of("megatron_fsdp", {"dp_shard": 4}, **LORA).at_rest()
    frozen = small.plan_of("megatron_fsdp", {"dp_shard": 4}, model="llama-tiny", version=MAIN).at_rest()
    assert sum(one.num_params for name, one in rest.items() if name != "adapters") == sum(
        one.num_params for one in frozen.values())
    assert all(one.grads_bytes == one.optimizer_bytes == 0 for name, one in rest.items() if name != "adapters")
    adapters = rest["adapters"]
    assert (adapters.params_bytes, adapters.grads_bytes, adapters.optimizer_bytes) == (
        2 * adapters.num_params, 2 * adapters.num_params, 12 * adapters.num_params)


def test_frozen_parameters_are_no_part_of_the_release() -> None:
    with pytest.raises(IllegalLayout, match="cannot register a hook on a tensor that doesn't require gradient"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, **LORA | {"version": "core 0.16.1"})


def test_what_of_adapters_is_not_served() -> None:
    fp8: dict[str, Any] = {"precision": {"compute": "fp8"}, "topology": "gb200-nvl72"}
    with pytest.raises(NotYet, match="lora over weights in 8 bits"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, **LORA | fp8)
    with pytest.raises(IllegalLayout, match="does not require grad"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, version=MAIN, method="lora", recompute="full")


def test_gradients_of_experts_adapters_go_to_experts_ranks() -> None:
    """Each rank's pair serves its local experts (Bridge's default), and is cut over the ranks with the same ones."""
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 4, "ep": 2}, version=MAIN, method="lora", model={
        "config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2}})
    of_experts = [bucket for bucket in rank_buckets(plan) if bucket.axis == "expert_dp"]
    assert [(bucket.trainable, bucket.parts) for bucket in of_experts] == [(False, 2), (True, 2)] * 2


def test_it_needs_less_than_training_all() -> None:
    few, whole = (simulate(small.scenario("megatron_fsdp", {"dp_shard": 8}, model="llama-3-8b", seq_len=4096,
                                          version=MAIN, method=method)) for method in ("lora", "full"))
    assert few.status == whole.status == "ok"
    assert few.ranks[0].end_bytes is not None
    assert whole.ranks[0].end_bytes is not None
    assert few.ranks[0].end_bytes < whole.ranks[0].end_bytes / 2
    assert few.time is not None
    assert whole.time is not None
    assert few.time.step_s < whole.time.step_s
