"""Capacity of an expert rank and the paged stash: rules in Megatron-LM's words, and what a job then holds."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import QWEN3_MOE
from simcore.results.report import Report
from simcore.simulate import simulate

CAPACITY = {"moe_expert_rank_capacity_factor": 1.5}
STASH = CAPACITY | {"moe_paged_stash": True}
HYBRID = {"fp8_recipe": "mxfp8", "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep",
          "use_transformer_engine_op_fuser": True}


def answered(options: dict[str, Any], version: str = "main 2026-08-22", mesh: dict[str, int] | None = None,
             **given: Any) -> Report:
    """Report of a small Qwen3 mixture in mxfp8 on B200s; 4,096 tokens a rank, two rows each."""
    told: dict[str, Any] = {"model": QWEN3_MOE, "precision": {"compute": "fp8"}, "topology": "dgx-b200",
                            "seq_len": 4096, "micro_batch_size": 1, "microbatches": 2, "routing": "balanced"}
    asked = small.scenario("megatron", mesh or {"dp_shard": 4, "ep": 4}, options=HYBRID | options, **told | given)
    return simulate(asked.model_copy(update={"framework_version": version}))


@pytest.mark.parametrize(("told", "options", "given"), [
    ("core 0.16.1 has no moe_expert_rank_capacity_factor", CAPACITY, {"version": "core 0.16.1 + bridge 0.3.1"}),
    ("moe_paged_stash requires moe_expert_rank_capacity_factor to be set", {"moe_paged_stash": True}, {}),
    ("requires moe_flex_dispatcher_backend to be 'hybridep' or 'ncclep'", CAPACITY | {
        "moe_flex_dispatcher_backend": "deepep"}, {}),
    ("requires use_transformer_engine_op_fuser=True", CAPACITY | {"use_transformer_engine_op_fuser": False}, {}),
    ("Flex token dispatcher requires TPxEP > 1", CAPACITY, {"mesh": {"dp_shard": 4}}),
    ("Columnwise data is not set for grouped tensor", STASH, {"method": "lora"}),
])
def test_rules_are_megatrons(told: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    report = answered(options, **given)
    assert (report.status, told in report.problems[0].message) == ("illegal", True), report.problems
    assert report.problems[0].rule


@pytest.mark.parametrize(("told", "options", "given"), [
    ("not yet: 12288 rows of experts, and room for 10240", {"moe_expert_rank_capacity_factor": 1.25},
     {"routing": {"imbalance": 1.5}}),
    ("not yet: pages of experts whose layers run again", STASH, {"recompute": "full"}),
    ("not yet: pages of experts whose squared ReLU is made again", STASH, {
        "recompute": ["moe_act"], "model": "nemotron-3-nano-30b-a3b"}),
    ("the step runs again without (PagedStashRunner)", STASH | {"moe_paged_stash_buffer_size_factor_cuda": 0.25}, {}),
    ("the rest goes to pages on the host", STASH | {"moe_paged_stash_buffer_size_factor_cuda": 0.25,
                                                    "moe_paged_stash_buffer_size_factor_cpu": 1.0}, {}),
])
def test_what_makes_a_step_run_twice_is_not_modelled(told: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    report = answered(options, **given)
    assert (report.status, told in report.problems[0].message) == ("error", True), report.problems


@pytest.mark.parametrize("options", [
    {"moe_expert_rank_capacity_factor": 0.0}, {"moe_expert_rank_capacity_factor": float("inf")},
    STASH | {"moe_paged_stash_buffer_size_factor_cuda": 0.0}, CAPACITY | {"moe_paged_stash_page_size": 32}])
def test_factors_are_bounded_and_options_of_pages_need_them(options: dict[str, Any]) -> None:
    assert answered(options).status == "error"
    assert "not yet" not in answered(options).problems[0].message


def workspace(report: Report) -> int:
    assert report.status == "ok", report.problems
    peak = report.ranks[0].peak
    assert peak is not None
    return peak.by_category["workspace"]


def test_pages_hold_one_and_a_tenth_of_what_two_layers_keep() -> None:
    """8,192 rows a layer, and a scale for 32 of them: 18,585, 18,022 and 563 rows in pages of 64, each named twice."""
    pages = 291 * (64 * 256 + 16) + 282 * (3 * 16 + 64 * (256 + 4 + 64)) + 9 * (64 * 128 + 16)
    assert workspace(answered(STASH)) - workspace(answered(CAPACITY)) == pages


def test_a_stash_takes_less_than_the_room_that_it_saves() -> None:
    """With many microbatches in flight, pages hold balanced rows, not 1.5 times as many."""
    given: dict[str, Any] = {"mesh": {"pp": 4, "dp_shard": 2, "ep": 2}, "microbatches": 8,
             "model": {**QWEN3_MOE, "overrides": {**QWEN3_MOE["overrides"], "num_hidden_layers": 8}}}
    held = []
    for options in (CAPACITY, STASH):
        peak = answered(options, **given).ranks[0].peak
        assert peak is not None
        held.append(peak.allocated_bytes)
    assert held[1] < held[0]
