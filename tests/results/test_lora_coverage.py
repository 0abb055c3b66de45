"""Modules that LoRA hits, targets that hit nothing, adapters that never learn."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.results.lora_coverage import adapted_modules
from simcore.results.report import Adapters
from simcore.simulate import place, simulate


def adapters(framework: str, *, only_placed: bool = False, **lora: Any) -> Adapters:
    asked = small.scenario(framework, {"dp_shard": 2}, method="lora", lora={"rank": 8, **lora})
    report = place(asked) if only_placed else simulate(asked, timed=False)
    assert report.adapters is not None, report.problems
    return report.adapters


def test_modules_are_counted_over_layers() -> None:
    """MEM*E: two Mamba, two MoE, one attention layer."""
    found = adapters("fsdp2", target_modules=["in_proj", "q_proj", "down_proj"]).adapted
    assert found == {"mixer.in_proj": 2, "mixer.shared_experts.down_proj": 2, "mixer.q_proj": 1}


@pytest.mark.parametrize(("framework", "module", "count"), [
    ("automodel", "mixer.shared_experts.up_proj", 2), ("megatron", "mlp.experts.linear_fc1", 2),
    ("megatron", "self_attention.linear_qkv", 1)])
def test_each_framework_has_its_own_matcher(framework: str, module: str, count: int) -> None:
    assert adapters(framework).adapted[module] == count


def test_a_base_model_has_none() -> None:
    assert adapted_modules(small.prepared("fsdp2")[0].graph) == {}
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}), timed=False)
    assert report.adapters is None


@pytest.mark.parametrize("framework", ["fsdp2", "automodel"])
def test_the_fused_kernel_bypasses_adapters_of_out_proj(framework: str) -> None:
    targets = ["in_proj", "out_proj"] if framework == "fsdp2" else ["*.in_proj", "*.out_proj"]
    assert adapters(framework, target_modules=targets).without_gradient == {"mixer.out_proj": 2}
    assert adapters(framework, target_modules=targets[:1]).without_gradient == {}


def test_megatron_calls_the_module() -> None:
    assert adapters("megatron").without_gradient == {}


def test_what_was_not_run_says_nothing_of_gradients() -> None:
    assert adapters("fsdp2", only_placed=True, target_modules=["in_proj", "out_proj"]).without_gradient == {}


def test_targets_that_hit_nothing_are_told_beside_those_that_do() -> None:
    """This model has no gate_proj: its experts are not gated."""
    assert adapters("fsdp2", target_modules=["gate_proj", "in_proj"]).unmatched_targets == ("gate_proj",)
    assert adapters("automodel", target_modules=["*.gate_proj", "*.in_proj"]).unmatched_targets == ("*.gate_proj",)
    assert adapters("fsdp2").unmatched_targets == ()


def test_the_head_can_be_adapted_and_learns() -> None:
    found = adapters("fsdp2", target_modules=["lm_head", "q_proj"])
    assert found.adapted == {"mixer.q_proj": 1, "lm_head": 1}
    assert found.without_gradient == {}


def test_a_tied_head_is_refused() -> None:
    model = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
    report = place(small.scenario("fsdp2", {"dp_shard": 2}, model=model, method="lora",
                                  lora={"rank": 8, "target_modules": ["lm_head", "q_proj"]}))
    assert "tied lm_head" in report.problems[0].message


@pytest.mark.parametrize("framework", ["automodel", "megatron"])
@pytest.mark.parametrize("target", ["[", "(a"])
def test_a_pattern_that_is_none_is_refused_with_its_place(framework: str, target: str) -> None:
    report = simulate(small.scenario(framework, {"dp_shard": 2}, method="lora", lora={"target_modules": [target]}))
    (problem,) = report.problems
    assert "is no pattern" in problem.message
    assert problem.where.endswith("training.lora") or ":" in problem.where


def test_modules_come_in_the_order_of_layers() -> None:
    found = simulate(small.scenario("fsdp2", {"dp_shard": 2}, method="lora"), timed=False).adapters
    assert found is not None
    job, _ = small.prepared("fsdp2", {"dp_shard": 2}, method="lora")
    names = [t.name.split(".lora_")[0] for layer in job.graph.layers for t in job.graph.tensors[layer.kind]
             if t.module == "adapter"]
    assert list(found.adapted) == list(dict.fromkeys(names))
