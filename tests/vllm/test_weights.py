"""Weights on a rank: the full model at tp 1, the shards of vLLM's layers above it."""

from __future__ import annotations

from collections import Counter

import pytest

from simcore.models.graph import architecture_of, build, model_config
from simcore.vllm.weights import Weight, refusals, unserved, weights

NANO = "nemotron-3-nano-30b-a3b"


def of(model: str, tp: int) -> list[Weight]:
    return weights(architecture_of(model_config(model, None, "")), tp)


def by_component(model: str, tp: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for weight in of(model, tp):
        found[weight.component] += weight.numel
    return found


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-3b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b",
                                   "mixtral-8x7b", "nemotron-3-nano-4b", "nemotron-nano-9b-v2", "bamba-9b",
                                   "granite-4.0-h-tiny", "mistral-7b-v0.3", "gpt2", NANO, "olmo-2-1b",
                                   "gemma-7b", "gemma-3-1b", "gpt-oss-20b", "mistral-7b-v0.1"])
def test_one_rank_holds_the_model(model: str) -> None:
    graph = build(model_config(model, None, ""), "hf")
    vocab, hidden = graph.architecture.vocab, graph.architecture.hidden
    padded = (2 - graph.architecture.tied) * (-vocab % 64) * hidden
    corrections = sum(spec.numel for layer in graph.layers for spec in graph.tensors[layer.kind]
                      if spec.is_buffer and spec.component == "router")
    assert sum(by_component(model, 1).values()) == graph.count() + padded + corrections


def test_nano_is_cut_in_four_but_for_what_is_whole() -> None:
    whole, part = by_component(NANO, 1), by_component(NANO, 4)
    for component in ("embedding", "lm_head", "routed_experts", "shared_experts", "mamba"):
        assert part[component] * 4 == whole[component], component
    assert part["router"] == whole["router"]
    assert part["norms"] == whole["norms"]


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    rows = [by_component(NANO, tp)["attention"] * tp for tp in (1, 2, 4, 8)]
    kv = 6 * 2 * 128 * 2688  # keys and values of one more head, in six layers
    assert [row - rows[0] for row in rows] == [0, 0, 2 * kv, 6 * kv]


def test_the_router_of_nemotron_is_wide() -> None:
    assert {weight.width for weight in of(NANO, 1) if weight.component == "router"} == {4}
    assert {weight.width for weight in of("qwen3-30b-a3b", 1)} == {0}


@pytest.mark.parametrize(("model", "tp", "told"), [
    ("llama-3.1-8b", 3, "32 attention heads"), ("qwen2.5-7b", 7, "4 KV heads"), (NANO, 32, "8 Mamba groups"),
    (NANO, 3, "64 Mamba heads"), ("llama-3.1-8b", 3, "an MLP of 14336")])
def test_what_tp_cannot_cut_is_refused_by_its_rule(model: str, tp: int, told: str) -> None:
    found = refusals(architecture_of(model_config(model, None, "")), tp)
    assert any(told in message and rule.startswith("vLLM 0.12.0") for message, rule in found)


def test_what_tp_cuts_is_not_refused() -> None:
    assert [refusals(architecture_of(model_config(NANO, None, "")), tp) for tp in (1, 2, 4, 8)] == [[]] * 4


@pytest.mark.parametrize(("model", "told"), [("deepseek-v3", ""), ("gpt-oss-20b", ""), ("gemma-2-2b", "in gemma2"),
                                            ("zamba2-1.2b", "share a transformer"), (NANO, "")])
def test_what_is_not_described_is_named(model: str, told: str) -> None:
    found = unserved(architecture_of(model_config(model, None, "")), "0.25.1")
    assert told in found
    assert bool(told) == bool(found)


def test_windows_sinks_and_biases_are_those_of_the_newer_version() -> None:
    found = architecture_of(model_config("gpt-oss-20b", None, ""))
    assert unserved(found, "0.12.0") == "attention with sinks or a window with vLLM 0.12.0 (served: 0.25.1)"
    whole, half = (by_component("gpt-oss-20b", tp) for tp in (1, 2))
    layers, experts, hidden = 24, 32, 2880
    assert whole["routed_experts"] - 2 * half["routed_experts"] == -layers * experts * hidden, "down's"
    assert whole["router"] == half["router"] == layers * experts * (hidden + 1)


def test_experts_behind_a_latent_projection_by_hand() -> None:
    """vLLM 0.25.1 `models/nemotron_h.py`: projections whole on each rank, experts as wide as the latent."""
    model = architecture_of(model_config("nemotron-3-super-120b-a12b", None, ""))
    assert "behind a latent projection with vLLM 0.12.0" in unserved(model, "0.12.0")
    assert unserved(model, "0.25.1") == ""
    sizes = {tp: Counter[str]() for tp in (1, 4)}
    for tp, found in sizes.items():
        for weight in weights(model, tp, narrow_router=True):
            found[weight.component] += weight.numel
    layers, latent, hidden, experts, ffn = 40, 1024, 4096, 512, 2688
    assert [sizes[tp]["latent_projections"] for tp in (1, 4)] == [layers * 2 * latent * hidden] * 2
    assert [sizes[tp]["routed_experts"] * tp for tp in (1, 4)] == [layers * experts * 2 * latent * ffn] * 2


@pytest.mark.parametrize(("model", "rank", "down"), [("moonlight-16b-a3b", 0, 0), ("deepseek-v3", 1536, 1536 * 7168)])
def test_latent_attention_by_hand(model: str, rank: int, down: int) -> None:
    """vLLM 0.25.1 `models/deepseek_v2.py`: projections down are whole on each rank, heads are cut."""
    found, hidden, heads, layers = architecture_of(model_config(model, None, "")), *(
        (2048, 16, 27) if not rank else (7168, 128, 61))
    assert "latent attention with vLLM 0.12.0" in unserved(found, "0.12.0")
    for tp in (1, 4):
        sizes = Counter[str]()
        for weight in weights(found, tp):
            sizes[weight.component] += weight.numel
        cut = (rank or hidden) * heads * 192 + 512 * heads * 256 + heads * 128 * hidden
        assert sizes["attention"] == layers * (hidden * 576 + down + cut // tp)
