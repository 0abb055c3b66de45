"""Features that layers need beyond the plain blocks, by name; an implementation ignores none of them."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import NotYet
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.shared.features import features, refuse
from simcore.recording.layer import LayerWorkload

NEEDS = {
    "llama-tiny": set(), "nemotron-3-tiny": set(),
    "qwen2.5-7b": {"biases of query, key and value"}, "qwen3-8b": {"norms of query and key"},
    "qwen3-30b-a3b": {"norms of query and key", "gated experts", "a router by softmax"},
    "qwen1.5-moe-a2.7b": {"biases of query, key and value", "gated experts", "gated experts with a shared one",
                          "a router by softmax, not normalised", "a gate of the shared expert"},
    "mixtral-8x7b": {"gated experts", "a router by softmax"},
    "deepseek-v2-lite": {"latent attention", "gated experts", "gated experts with a shared one",
                         "a router by softmax, not normalised"},
    "deepseek-v3": {"latent attention", "gated experts", "gated experts with a shared one",
                    "gated experts chosen by sigmoid"},
    "gpt-oss-20b": {"attention sinks", "attention within a window", "biases of attention", "gated experts",
                    "biases of experts", "a router by softmax of the chosen"},
    "gpt2": {"dropout", "LayerNorm", "learned positions", "biases of attention", "a GELU MLP", "biases of the MLP"},
}
BY_TRANSFORMERS = {
    "phi-2": {"dropout", "LayerNorm", "biases of attention", "a GELU MLP", "biases of the MLP", "a bias of the head",
              "rotation of a part of each head", "attention and MLP beside each other"},
    "command-r7b": {"LayerNorm", "LayerNorm without a bias", "attention within a window",
                    "attention and MLP beside each other", "a scaled embedding or scaled logits"},
}
MPT: tuple[dict[str, Any], set[str]] = ({}, {"ALiBi", "LayerNorm", "LayerNorm without a bias", "a GELU MLP"})
FOUNDRY = ({"no_bias": False, "attn_config": {"alibi": False}},
           {"LayerNorm", "learned positions", "biases of attention", "a GELU MLP", "biases of the MLP"})


def needs(preset: str, code: str = "megatron", **changed: Any) -> set[str]:
    kinds = build(model_config(preset, changed, "test"), code).kinds
    return {name for kind in kinds for name in features(kind)}


@pytest.mark.parametrize("preset", NEEDS)
def test_what_a_model_needs(preset: str) -> None:
    assert needs(preset) == NEEDS[preset]


@pytest.mark.parametrize("preset", BY_TRANSFORMERS)
def test_what_models_need_that_megatron_does_not_build(preset: str) -> None:
    assert needs(preset, "hf") == BY_TRANSFORMERS[preset]


@pytest.mark.parametrize(("changed", "found"), [MPT, FOUNDRY])
def test_what_mpt_needs(changed: dict[str, Any], found: set[str]) -> None:
    """Megatron does not build it."""
    assert needs("mpt-7b", "llmfoundry", **changed) == found


def test_a_further_token_is_a_need() -> None:
    assert needs("deepseek-v3", mtp_num_layers=1) - needs("deepseek-v3") == {"multi-token prediction"}


def test_what_is_not_served_is_told_by_name() -> None:
    kind = build(model_config("gpt2", {"embd_pdrop": 0}, "test"), "hf").kinds[0]
    refuse(kind, frozenset({"learned positions"}), "hf")
    with pytest.raises(NotYet, match=r"not yet: learned positions \(gpt2, embedding\) in the layers of hf"):
        refuse(kind, frozenset(), "hf")


def test_recording_refuses_what_it_would_ignore() -> None:
    """GPT-2's modules have other names and its weights are transposed."""
    layer = build(model_config("gpt2", {}, "test"), "hf").kinds[1]
    with pytest.raises(NotYet, match="layers of gpt2"):
        hf.record(layer, LayerWorkload(1, 8, "bf16", {}), {}, {})


@pytest.mark.parametrize("field", ["attn_pdrop", "resid_pdrop", "embd_pdrop"])
def test_each_kind_of_dropout_is_a_need(field: str) -> None:
    still: dict[str, float] = {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}
    kinds = build(model_config("gpt2", still | {field: 0.1}, "test"), "megatron").kinds
    assert sum("dropout" in features(kind) for kind in kinds) == 1
