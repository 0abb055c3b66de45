"""MPT: published counts, those of llm-foundry's benchmarks, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError, NotYet
from simcore.models.blocks import Attention, Embedding, Mlp
from simcore.models.graph import ModelGraph, build, model_config

FIRST: dict[str, Any] = {"d_model": 2048, "n_layers": 24, "n_heads": 16, "vocab_size": 50368, "no_bias": False,
                         "attn_config": {"alibi": False}}
"""llm-foundry 0.3.0 `scripts/train/yamls/pretrain/mpt-1b.yaml`."""


def graph(code: str = "llmfoundry", **changed: Any) -> ModelGraph:
    return build(model_config("mpt-7b", {**FIRST, **changed}, "model"), code)


def published(code: str = "llmfoundry") -> ModelGraph:
    return build(model_config("mpt-7b", None, "model"), code)


def test_the_published_count() -> None:
    """6,649,286,656: the tied head counts once."""
    assert published().count() == published("hf").count() == 6_649_286_656


@pytest.mark.parametrize(("hidden", "layers", "heads", "seq", "count"), [
    (2048, 24, 16, 2048, 1_315_950_592), (2048, 24, 16, 65536, 1_445_974_016), (2560, 32, 20, 512, 2_647_905_280),
    (5120, 40, 40, 2048, 12_853_954_560), (7168, 48, 56, 2048, 29_975_214_080), (8192, 80, 64, 2048, 64_862_437_376)])
def test_counts_that_llm_foundry_s_benchmarks_print(hidden: int, layers: int, heads: int, seq: int, count: int) -> None:
    """Biases, and a position vector for each token of a sequence."""
    assert graph(d_model=hidden, n_layers=layers, n_heads=heads, max_seq_len=seq).count() == count


def test_biases_and_positions_are_words_of_the_configuration() -> None:
    plain = graph(no_bias=True)
    assert graph().count() - plain.count() == 24 * 11 * 2048 + 2048
    assert plain.count() - graph(no_bias=True, learned_pos_emb=False).count() == 2048 * 2048


def test_alibi_tells_positions_in_the_place_of_vectors() -> None:
    stem, layer = published().kinds[:2]
    assert isinstance(stem.block, Embedding)
    assert stem.block.positions == 0
    attention, mlp = (branch.block for branch in layer.branches)
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    assert (attention.alibi, attention.bias, mlp.bias, mlp.ffn) == (True, "", False, 4 * 4096)
    assert not any(spec.name.endswith("bias") for specs in published().tensors for spec in specs)


def test_dropout_is_the_configurations() -> None:
    assert not [kind for kind in graph().kinds if kind.dropout]
    assert [kind.name for kind in graph(emb_pdrop=0.1, resid_pdrop=0.1).kinds if kind.dropout] == [
        "embedding", "decoder"]


def test_transformers_builds_neither_biases_nor_positions() -> None:
    with pytest.raises(NotYet, match=r"transformers 5\.23 builds MPT with ALiBi and without biases"):
        graph(code="hf")


def test_megatron_builds_no_mpt() -> None:
    """Its LayerNorm has a bias, whatever is said of linears."""
    with pytest.raises(NotYet, match="not yet: mpt in Megatron's layers"):
        published("megatron")


@pytest.mark.parametrize(("changed", "told"), [
    ({"norm_type": "rmsnorm"}, "expected low_precision_layernorm, got 'rmsnorm'"),
    ({"embedding_fraction": 0.5}, "embedding_fraction: not modelled yet"),
    ({"logit_scale": "inv_sqrt_d_model"}, "logit_scale: not modelled yet"),
    ({"n_heads": 7}, "n_heads: expected a divisor of 2048, got 7"),
    ({"attn_config": 3}, "attn_config: expected a block of words, got 3"),
    ({"attn_config": {"clip_qkv": 6}}, "clip_qkv: not modelled yet"),
    ({"attn_config": {"qk_ln": True}}, "qk_ln: not modelled yet"),
    ({"attn_config": {"attn_type": "grouped_query_attention"}}, "attn_type: expected multihead_attention")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    fields = {**model_config("mpt-7b", FIRST, "model"), **changed}
    with pytest.raises(InputError, match=told):
        build(fields, "llmfoundry")
