"""Qwen: published counts, where Qwen3-MoE is dense, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph, build, model_config


def graph(preset: str, **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


@pytest.mark.parametrize(("preset", "count"), [
    ("qwen2.5-7b", 7_615_616_512), ("qwen3-8b", 8_190_735_360), ("qwen3-30b-a3b", 30_532_122_624),
    ("qwen1.5-moe-a2.7b", 14_315_784_192)])
def test_published_counts(preset: str, count: int) -> None:
    """As the model cards' safetensors say."""
    assert graph(preset).count() == count


def test_biases_and_norms_of_heads() -> None:
    """Qwen2.5-7B: 3584 + 2 x 512 biases a layer; Qwen3-8B: two norms of 128."""
    qwen2, qwen3 = graph("qwen2.5-7b").tensors[1], graph("qwen3-8b").tensors[1]
    assert sum(t.numel for t in qwen2 if t.module == "bias") == 3584 + 2 * 512
    assert [t.shape for t in qwen3 if t.name.endswith(("q_norm.weight", "k_norm.weight"))] == [(128,), (128,)]
    assert not [t for t in qwen3 if t.module == "bias"]


def test_experts_in_some_layers() -> None:
    """Layers 1 and 3 by the step; layer 3 is listed as dense."""
    assert graph("qwen3-30b-a3b", num_hidden_layers=5, decoder_sparse_step=2).architecture.pattern == "DEDED"
    mixed = graph("qwen3-30b-a3b", num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3])
    assert mixed.architecture.pattern == "DEDDD"


def test_a_shared_expert_has_a_gate() -> None:
    kinds = graph("qwen1.5-moe-a2.7b").kinds
    assert kinds[1].branches[1].block == Moe(2048, 60, 4, 1408, 5632, gated=True, router="softmax", normalised=False,
                                             shared_gate=True)
    assert [t.shape for t in graph("qwen1.5-moe-a2.7b").tensors[1] if "shared_expert_gate" in t.name] == [(1, 2048)]
    assert not [t for t in graph("qwen1.5-moe-a2.7b", qkv_bias=False).tensors[1] if t.module == "bias"]


def test_the_router_says_whether_weights_add_up_to_one() -> None:
    kinds = graph("qwen3-30b-a3b", norm_topk_prob=False).kinds
    assert kinds[1].branches[1].block == Moe(2048, 128, 8, 768, 0, gated=True, router="softmax", normalised=False)


@pytest.mark.parametrize(("preset", "changed", "told"), [
    ("qwen2.5-7b", {"use_sliding_window": True}, "use_sliding_window: not modelled yet"),
    ("qwen3-8b", {"attention_bias": True}, "attention_bias: not modelled yet"),
    ("qwen3-30b-a3b", {"mlp_only_layers": 3}, "mlp_only_layers: expected a list of layer numbers, got 3"),
    ("qwen3-30b-a3b", {"num_experts_per_tok": 129}, "expected at most 128 experts, got 129")])
def test_refused(preset: str, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(preset, **changed)
