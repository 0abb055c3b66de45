"""Llama: parameters by the published formula, tied heads, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.graph import ModelGraph, build, model_config
from simcore.models.network import Edge


def graph(preset: str = "llama-tiny", **changed: Any) -> ModelGraph:
    return build({**model_config(preset, None, "model"), **changed}, "hf")


@pytest.mark.parametrize(("preset", "count"), [("llama-3.1-8b", 8_030_261_248), ("llama-3.2-3b", 3_212_749_824)])
def test_published_counts(preset: str, count: int) -> None:
    """As the model cards' safetensors say; the 3B ties its head to the embedding."""
    assert graph(preset).count() == count


def test_parameters_of_a_layer() -> None:
    """q and o 256 x 256, k and v 128 x 256, three 256 x 688 matrices, two norms."""
    layer = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688 + 2 * 256
    assert graph().count() == 4 * layer + 256 + 2 * 1000 * 256


def test_a_tied_head_owns_nothing_and_hangs_on_the_embedding() -> None:
    tied = graph(tie_word_embeddings=True)
    assert graph().count() - tied.count() == 1000 * 256
    assert tied.network.has_edge("model.embed_tokens", "lm_head", Edge.TIED)
    assert not graph().network.has_edge("model.embed_tokens", "lm_head")


def test_rotary_frequencies_are_buffers_outside_the_layers() -> None:
    """inv_freq twice, fp32, 16 pairs of 32 dimensions."""
    assert graph().architecture.buffers == (("model.rotary_emb.inv_freq", 2 * 4 * 16),)


@pytest.mark.parametrize(("changed", "told"), [
    ({"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of 8 heads, got 3"),
    ({"num_attention_heads": 12}, "num_attention_heads: expected a divisor of hidden_size 256, got 12"),
    ({"attention_bias": True}, "attention_bias"), ({"mlp_bias": True}, "mlp_bias"),
    ({"attention_bias": "no"}, "expected true or false, got 'no'"),
    ({"intermediate_size": "688"}, "intermediate_size: expected an integer")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        graph(**changed)
    assert told in str(refused.value)


def test_granite_is_llama_with_numbers_that_multiply() -> None:
    made = graph("granite-3.3-2b")
    assert made.count() == 2_533_539_840
    assert {kind.name: kind.scaled for kind in made.kinds} == {
        "embedding": True, "decoder": True, "final_norm": False, "head": True, "loss": False}


def test_olmo_2_has_norms_behind_its_blocks_alone() -> None:
    made = graph("olmo-2-1b")
    assert [(branch.norm, branch.behind) for branch in made.kinds[1].branches] == [
        ("", "post_attention_layernorm"), ("", "post_feedforward_layernorm")]
    assert [spec.name for spec in made.tensors[1] if spec.component == "norms"] == [
        "self_attn.q_norm.weight", "self_attn.k_norm.weight", "post_attention_layernorm.weight",
        "post_feedforward_layernorm.weight"]


@pytest.mark.parametrize(("preset", "field"), [
    ("granite-3.3-2b", "attention_bias"), ("granite-3.3-2b", "mlp_bias"), ("olmo-2-1b", "attention_bias")])
def test_biases_of_granite_and_olmo_are_refused(preset: str, field: str) -> None:
    with pytest.raises(InputError, match=f"{field}: biases are not modelled yet"):
        graph(preset, **{field: True})
