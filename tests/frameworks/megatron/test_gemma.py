"""Gemma 3 under Megatron: it runs, windows between ranks, and the activation. Gemma 2: what its attention refuses."""

from __future__ import annotations

from typing import Any

import small
from simcore.results.report import Report
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024, "num_hidden_layers": 6,
                         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 64}


def ran(mesh: dict[str, int], framework: str = "megatron", config: str = "gemma-3-1b", **more: Any) -> Report:
    return simulate(small.scenario(framework, mesh, model={"config": config, "overrides": SMALL}, **more))


def test_it_runs() -> None:
    reports = {
        "tp": ran({"dp_shard": 2, "tp": 2}), "stages": ran({"dp_shard": 2, "pp": 2}),
        "heads": ran({"dp_shard": 2, "cp": 2}, options={"cp_comm_type": "a2a"}),
        "adapters": ran({"dp_shard": 2, "tp": 2}, method="lora"),
        "replayed": ran({"dp_shard": 2}, recompute="full"), "packed": ran({"dp_shard": 2}, lengths="packed"),
        "whole": ran({"dp_shard": 2}, "megatron_fsdp")}
    assert {name: report.problems for name, report in reports.items() if report.status != "ok"} == {}


def test_windows_are_not_passed_from_rank_to_rank() -> None:
    report = ran({"dp_shard": 2, "cp": 2})
    assert report.status == "illegal"
    assert report.problems[0].message.startswith("attention within a window under context parallelism by p2p")


def test_its_activation_is_not_fused() -> None:
    report = ran({"dp_shard": 2}, options={"bias_activation_fusion": True})
    assert report.status == "illegal"
    assert "fast_gelu here" in report.problems[0].message


    report = ran({"dp_shard": 2})
    assert [note.value for note in report.assumptions if note.what.endswith("bias_activation_fusion")] == ["false"]


def test_capped_scores_have_a_kernel_without_packs_and_context_parallelism() -> None:
    refused = {
        "packed": ({"dp_shard": 2}, {"lengths": "packed"}, "illegal", "Packed sequence is not supported by DotProduct"),
        "shared": ({"dp_shard": 2, "cp": 2}, {}, "illegal", "Context parallelism is only supported by TEDotProduct")}
    for name, (mesh, more, status, message) in refused.items():
        report = ran(mesh, config="gemma-2-2b", **more)
        assert (name, report.status) == (name, status)
        assert report.problems[0].message.startswith(message), name
    assert ran({"dp_shard": 2}, config="gemma-2-2b").status == "ok"
