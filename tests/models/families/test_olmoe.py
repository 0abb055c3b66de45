"""OLMoE: its layers, where it runs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention, Moe
from simcore.models.graph import build, model_config
from simcore.results.report import Report
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 64, "vocab_size": 512, "num_hidden_layers": 2,
                         "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2}


def ran(framework: str, mesh: dict[str, int], **more: Any) -> Report:
    return simulate(small.scenario(framework, mesh, model={"config": "olmoe-1b-7b", "overrides": SMALL}, **more))


def test_norms_over_all_heads_and_experts_in_every_layer() -> None:
    kinds = build(model_config("olmoe-1b-7b", None, "model"), "hf").kinds
    assert [branch.block for branch in kinds[1].branches] == [
        Attention(2048, 16, 16, 128, rotary=True, qk_norm=True, whole_norms=True),
        Moe(2048, 64, 8, 1024, 0, gated=True, router="softmax", normalised=False)]


def test_it_runs() -> None:
    meshes = {"fsdp2": {"dp_shard": 2}, "ddp": {"dp_replicate": 2}, "megatron": {"dp_shard": 2, "ep": 2},
              "megatron_fsdp": {"dp_shard": 2}}
    reports = {f"{framework}, {method}": ran(framework, mesh, method=method) for framework, mesh in meshes.items()
               for method in ("full", "lora") if (framework, method) != ("megatron_fsdp", "lora")}
    assert {name: report.problems for name, report in reports.items() if report.status != "ok"} == {}


def test_a_norm_over_all_heads_needs_all_of_them() -> None:
    report = ran("megatron", {"dp_shard": 2, "tp": 2})
    assert report.status == "illegal"
    assert report.problems[0].message.startswith("a norm over all heads, of which a tp rank has some")


def test_clipped_values_are_refused() -> None:
    with pytest.raises(InputError, match="clip_qkv: not modelled yet"):
        build({**model_config("olmoe-1b-7b", None, "model"), "clip_qkv": 8.0}, "hf")
