"""GLM-4.5 to 4.7: published counts, the shape of layers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.blocks import Attention, LatentAttention, Mlp, Moe
from simcore.models.graph import ModelGraph, build, model_config


def graph(preset: str = "glm-4.5-air", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "automodel")


def test_attention_has_biases_and_rotates_half_of_a_head() -> None:
    dense, sparse = graph().kinds[1:3]
    assert [branch.block for branch in dense.branches] == [
        Attention(4096, 96, 8, 128, rotary=True, bias="qkv", rotated=64), Mlp(4096, 10944)]
    assert sparse.branches[1].block == Moe(4096, 128, 8, 1408, 1408, gated=True)
    assert graph().architecture.pattern == "D" + "E" * 45


def test_the_larger_one_norms_heads_after_three_dense_layers() -> None:
    made = graph("glm-4.7")
    assert made.kinds[1].branches[0].block == Attention(5120, 96, 8, 128, rotary=True, bias="qkv", qk_norm=True,
                                                        rotated=64)
    assert made.architecture.pattern == "DDD" + "E" * 89


def test_the_lite_one_has_latent_attention() -> None:
    made = graph("glm-4.7-flash")
    assert made.kinds[1].branches[0].block == LatentAttention(2048, 20, 768, 512, 192, 64, 256)
    assert made.architecture.pattern == "D" + "E" * 46


def test_kinds_of_layers_may_be_listed() -> None:
    kinds = ["dense", "sparse", "dense"]
    assert graph("glm-4.7-flash", num_hidden_layers=3, mlp_layer_types=kinds).architecture.pattern == "DED"


@pytest.mark.parametrize(("preset", "changed", "told"), [
    ("glm-4.7-flash", {"attention_bias": True}, "attention_bias: not modelled yet"),
    ("glm-4.7-flash", {"num_key_value_heads": 4}, "num_key_value_heads: expected 20"),
    ("glm-4.7-flash", {"mlp_layer_types": ["dense"]}, "mlp_layer_types: expected 47 or more"),
    ("glm-4.5-air", {"partial_rotary_factor": 0.01}, "partial_rotary_factor: expected pairs"),
    ("glm-4.5-air", {"num_experts_per_tok": 129}, "num_experts_per_tok: expected at most 128")])
def test_refused(preset: str, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(preset, **changed)


def test_some_layers_take_the_keys_that_an_earlier_one_chose() -> None:
    """As transformers 5.23 `configuration_glm_moe_dsa.py`, __post_init__."""
    def shared(**changed: Any) -> str:
        made = graph("glm-5", num_hidden_layers=8, **changed)
        blocks = [made.kinds[layer.kind].branches[0].block for layer in made.layers[1:9]]
        return "".join("FS"[isinstance(block, LatentAttention) and block.indexer is not None and block.indexer.borrows]
                       for block in blocks)

    assert shared() == "FFFFFFFF"
    assert shared(index_topk_freq=4, index_skip_topk_offset=3) == "FFFSSSFS"
    assert shared(index_topk_pattern="FSFSFSFS") == "FSFSFSFS"
    assert shared(index_topk_pattern="FS" * 4, indexer_types=["full"] * 6 + ["shared"] * 2) == "FFFFFFSS"
    with pytest.raises(InputError, match="there is none"):
        shared(indexer_types=["shared"] * 8)
    with pytest.raises(InputError, match="expected a letter"):
        shared(index_topk_pattern="FX")
    with pytest.raises(InputError, match="a list is that of indexer_types"):
        shared(index_topk_pattern=["full"])
