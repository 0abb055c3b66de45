"""Adapters of fused experts: which frameworks have them, and what is refused; their bytes: test_truth_expert_adapters.

Here an MoE block of Qwen3 has 8 experts of 256 x 128.
"""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.common.expert_adapters import adapts_experts, names_of_experts
from simcore.simulate import simulate

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
QWEN = {"config": "qwen3-30b-a3b", "overrides": {
    "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 512, "num_experts_per_tok": 2, "max_position_embeddings": 4096, "moe_intermediate_size": 128,
    "intermediate_size": 512, "num_experts": 8}}


def given(*targets: str, **more: Any) -> dict[str, Any]:
    lora = {"target_modules": list(targets)} if targets else {}
    return {"model": QWEN, "method": "lora", "lora": {"rank": 8, **lora}} | more


def test_names_without_modules_are_those_of_experts() -> None:
    assert names_of_experts("qwen3_moe", "hf") == tuple(MLP)
    assert names_of_experts("mixtral", "hf") == ("w1", "w3", "w2")
    assert names_of_experts("qwen3_moe", "hf4") == names_of_experts("nemotron_h", "hf") == ()


def test_default_targets_are_modules_alone() -> None:
    job, table = small.prepared("ddp", **given())
    assert not adapts_experts(job)
    assert not set((table.default("training.lora.target_modules") or "").split(", ")) & set(MLP)
    _, dense = small.prepared("ddp", model="llama-tiny", method="lora")
    assert set((dense.default("training.lora.target_modules") or "").split(", ")) >= set(MLP)


@pytest.mark.parametrize(("framework", "mesh"), [
    ("ddp", {}), ("fsdp2", {"dp_shard": 2}), ("zero1", {"dp_shard": 2}), ("zero2", {"dp_shard": 2})])
def test_named_experts_are_adapted_with_grouped_products(framework: str, mesh: dict[str, int]) -> None:
    job, table = small.prepared(framework, mesh, **given(*ATTENTION, *MLP))
    assert adapts_experts(job)
    assert table.default("framework_options.experts_implementation") == "grouped_mm"
    assert simulate(small.scenario(framework, mesh, **given(*ATTENTION, *MLP))).status == "ok"


@pytest.mark.parametrize("framework", ["ddp", "fsdp2"])
def test_modules_of_experts_have_their_own_adapters(framework: str) -> None:
    """transformers 4: every expert's linear is a module."""
    job, _ = small.prepared(framework, {}, **given(*MLP), implementation="hf4")
    assert not adapts_experts(job)
    found = {spec.shape for specs in job.graph.tensors for spec in specs if spec.module == "adapter"}
    assert found == {(8, 256), (128, 8), (8, 128), (256, 8)}


@pytest.mark.parametrize(("framework", "mesh", "more", "error", "message"), [
    ("fsdp1", {"dp_shard": 2}, {"options": {"use_orig_params": True}}, IllegalLayout, "modified inplace"),
    ("zero3", {"dp_shard": 2}, {}, NotYet, "adapters of fused experts under zero3"),
    ("fsdp2", {"dp_shard": 2, "ep": 2}, {}, NotYet, "split over ranks"),
    ("ddp", {}, {"lora": {"target_modules": [*ATTENTION, "gate"]}}, NotYet, "the router's weight"),
    ("ddp", {}, {"lora": {"target_modules": ["up_proj"]}}, IllegalLayout, "cannot be adapted without gate_proj"),
    ("ddp", {}, {"lora": {"target_modules": MLP, "dropout": 0.1}}, IllegalLayout, "do not work with dropout"),
    ("ddp", {}, {"lora": {"target_modules": MLP, "use_dora": True}}, IllegalLayout, "do not work with use_dora")])
def test_what_is_refused_is_named(framework: str, mesh: dict[str, int], more: dict[str, Any], error: type[Exception],
                                  message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared(framework, mesh, **given(*MLP, **more))


def test_a_merge_adds_to_all_experts_at_once() -> None:
    """The largest product is gate and up of all experts, whole and scaled, in the adapters' type."""
    scenario = small.scenario("ddp", **given(*MLP))
    chosen = scenario.checkpoint.model_copy(update={"merge": "device"})
    report = simulate(scenario.model_copy(update={"checkpoint": chosen}), timed=False)
    assert report.host is not None
    merge = next(phase for phase in report.host.phases if phase.phase == "merge")
    assert merge.by_category["one tensor"] == 2 * 2 * 8 * 256 * 256
