"""Options that change nothing in a job: the report says so, and simulating without them gives the same numbers."""

from __future__ import annotations

from typing import Any

import small
from simcore.frameworks.idle_options import IDLE
from simcore.results.report import Report
from simcore.simulate import check, simulate

TIED = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
IDLE_IN: tuple[tuple[str, dict[str, int], dict[str, Any], dict[str, Any]], ...] = (
    ("fsdp2", {"dp_shard": 2}, {"recompute_by": "transformers"}, {}),
    ("fsdp2", {"dp_shard": 2}, {"set_is_last_backward": "last"}, {"microbatches": 1}),
    ("fsdp2", {"dp_shard": 2}, {"sync_gradients": "last"}, {"microbatches": 1}),
    ("fsdp2", {"dp_shard": 2}, {"wrap": "embedding_tail"}, {"model": TIED}),
    ("fsdp1", {"dp_shard": 2}, {"sync_gradients": "last"}, {"microbatches": 1, "model": TIED}),
    ("automodel", {"dp_shard": 2}, {"defer_fsdp_grad_sync": False}, {"microbatches": 1, "model": TIED}),
    ("automodel", {"dp_shard": 2}, {"enable_fsdp2_prefetch": True}, {}),  # Nemotron-H's layers are not chained
    ("automodel", {"dp_shard": 2}, {"enable_fsdp_optimizations": True}, {"microbatches": 1, "model": TIED}),
    ("automodel", {"dp_shard": 2}, {"dispatcher": "deepep"}, {"model": TIED}),
    ("automodel", {}, {"dispatcher": "hybridep"}, {}),
    ("megatron", {"dp_shard": 2}, {"cp_comm_type": "a2a", "moe_permute_fusion": False, "moe_grouped_gemm": False,
                                   "use_fused_weighted_squared_relu": False, "use_transformer_engine_op_fuser": True},
     {"model": TIED}))
MATTERS_IN: tuple[tuple[str, dict[str, int], dict[str, Any], dict[str, Any]], ...] = (
    ("fsdp2", {"dp_shard": 2}, {"recompute_by": "transformers"}, {"recompute": "full"}),
    ("fsdp2", {"dp_shard": 2}, {"sync_gradients": "every"}, {"microbatches": 2}),
    ("fsdp2", {"dp_shard": 2}, {"use_kernels": False}, {}),  # the only value that is taken
    ("fsdp2", {"dp_shard": 2}, {"wrap": "embedding_tail"}, {}),
    ("zero3", {"dp_shard": 2}, {"overlap_comm": False}, {}))  # a stream of its own, whose time is not modelled


def test_an_option_that_changes_nothing_is_told_and_changes_nothing() -> None:
    found = {}
    for case in (*IDLE_IN, *MATTERS_IN):
        name, mesh, options, given = case
        asked, left = (simulate(small.scenario(name, mesh, options=some, **given)) for some in (options, {}))
        assert asked.status == left.status == "ok", asked.problems
        idle = {one.what for one in asked.assumptions if one.value == IDLE}
        if idle != ({f"framework_options.{key}" for key in options} if case in IDLE_IN else set()):
            found[str(case)] = str(idle)
        if case in IDLE_IN and _numbers(asked) != _numbers(left):
            found[str(case)] = "changes the answer"
    assert found == {}


def _numbers(report: Report) -> dict[str, Any]:
    return report.model_dump(exclude={"name", "scenario", "assumptions"})


def test_idle_options_are_told_in_one_order_whatever_the_files() -> None:
    idle = {"seq_parallel_communication_data_type": "fp16", "round_robin_gradients": True}
    told = [[one.what for one in check(small.scenario("zero3", {"dp_shard": 2}, options=dict(given))).assumptions
             if one.value == IDLE]
            for given in (idle.items(), reversed(idle.items()))]
    assert told[0] == told[1]
    assert len(told[0]) == len(idle)


def test_products_of_experts_are_for_models_with_experts() -> None:
    for name, mesh in (("fsdp1", {"dp_shard": 2}), ("fsdp2", {"dp_shard": 2}), ("zero2", {"dp_shard": 2}),
                       ("ddp", {"dp_replicate": 2})):
        report = simulate(small.scenario(name, mesh, model=TIED, options={"experts_implementation": "grouped_mm"}))
        assert [one.message for one in report.problems] == [
            "experts_implementation: changes nothing in a model without experts"], name


def test_what_is_about_experts_is_refused_without_them() -> None:
    apart: dict[str, Any] = {"precision": {"experts": "fp32"}}
    lora: dict[str, Any] = {"method": "lora", "lora": {"target_modules": ["*q_proj"], "expert_adapters": "per_expert"}}
    asked: tuple[tuple[dict[str, int], dict[str, Any], str], ...] = (
        ({"dp_shard": 2}, apart, "experts: changes nothing where no experts are stored apart"),
        ({"dp_shard": 2, "ep": 2}, apart, ""),
        ({"dp_shard": 2}, {"model": TIED, **lora}, "expert_adapters: changes nothing in a model without experts"),
        ({"dp_shard": 2}, {"options": {"dispatcher": "deepep"}}, "has no attribute 'token_dispatcher'"),
        ({"dp_shard": 2, "ep": 2}, {"options": {"dispatcher": "deepep"}}, ""))
    found = {}
    for mesh, given, words in asked:
        told = " ".join(one.message for one in simulate(small.scenario("automodel", mesh, **given)).problems)
        if words not in told or bool(words) != bool(told):
            found[f"{mesh} {given}"] = told
    assert found == {}
