"""GPT-2: the published count, both spellings of its fields, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.blocks import Attention, LatentAttention, Mlp
from simcore.models.graph import ModelGraph, build, model_config


def graph(code: str = "megatron", **changed: Any) -> ModelGraph:
    return build({**model_config("gpt2", None, "model"), **changed}, code)


def test_the_published_count() -> None:
    """124,439,808: the tied head counts once."""
    assert graph().count() == 124_439_808
    assert graph(tie_word_embeddings=False).count() == 124_439_808 + 50257 * 768


def test_positions_are_a_table_of_their_own() -> None:
    assert graph().count("embedding") == (50257 + 1024) * 768


def test_the_usual_names_come_first() -> None:
    assert graph(num_hidden_layers=3).num_blocks == 3
    assert graph(n_inner=100).count("mlp") == 12 * (2 * 100 * 768 + 100 + 768)


def test_dropout_is_the_configurations() -> None:
    assert [kind.name for kind in graph().kinds if kind.dropout] == ["embedding", "decoder"]
    assert [kind.name for kind in graph(attn_pdrop=0, resid_pdrop=0.0).kinds if kind.dropout] == ["embedding"]
    assert not [kind for kind in graph(attn_pdrop=0, resid_pdrop=0, embd_pdrop=0).kinds if kind.dropout]


def test_changes_in_megatrons_words() -> None:
    changed = graph(add_bias_linear=False, normalization="RMSNorm")
    assert graph().count("mlp") - changed.count("mlp") == 12 * (4 * 768 + 768)
    assert graph().count("norms") == 2 * changed.count("norms")
    experts = graph(add_bias_linear=False, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=1024)
    assert experts.count("routed_experts") == 12 * 8 * 2 * 1024 * 768


def test_relu_squared_is_neither_gated_nor_gelu() -> None:
    """Nemotron-4 15B in Megatron's words: 15.6 billion parameters (Megatron-LM d98e8a64, gpt3_15b_8t_release)."""
    whole = graph(n_embd=6144, n_layer=32, n_head=48, num_query_groups=8, position_embedding_type="rope",
                  vocab_size=256000, tie_word_embeddings=False, add_bias_linear=False, activation_function="relu2")
    (mlp,) = {branch.block for kind in whole.kinds for branch in kind.branches if isinstance(branch.block, Mlp)}
    assert (mlp.ffn, mlp.gated, mlp.gelu, mlp.bias) == (4 * 6144, False, False, False)
    assert whole.count() == 2 * 256000 * 6144 + 32 * (2 * 6144**2 + 2 * 6144 * 1024 + 8 * 6144**2 + 4 * 6144) + 2 * 6144


EXPERTS: dict[str, Any] = {"add_bias_linear": False, "n_routed_experts": 8, "num_experts_per_tok": 2,
                           "moe_intermediate_size": 1024}


def test_the_first_layers_may_have_no_experts() -> None:
    found = graph(**EXPERTS, first_k_dense_replace=4)
    assert [found.kinds[layer.kind].name for layer in found.layers][1:-3] == ["decoder"] * 4 + ["moe_decoder"] * 8
    assert found.count("routed_experts") == 8 * 8 * 2 * 1024 * 768
    assert found.count("mlp") == 4 * 2 * 3072 * 768
    assert graph(add_bias_linear=False, first_k_dense_replace=4).count("mlp") == 12 * 2 * 3072 * 768


def test_a_router_by_sigmoid_has_a_bias_for_the_choice() -> None:
    buffers = [[t.name for t in graph(**EXPERTS, **given).tensors[1] if t.is_buffer]
               for given in ({}, {"moe_router_score_function": "sigmoid"})]
    assert buffers[0] == []
    assert any("expert_bias" in name for name in buffers[1])


def test_one_token_more_is_predicted_by_a_layer_like_the_last() -> None:
    found = graph(**EXPERTS, first_k_dense_replace=1, mtp_num_layers=1, position_embedding_type="rope",
                  tie_word_embeddings=False)
    kinds = [found.kinds[layer.kind] for layer in found.layers]
    assert [kind.name for kind in kinds[-5:]] == ["moe_decoder", "final_norm", "mtp", "head", "loss"]
    assert kinds[-3].branches == kinds[-5].branches
    # three LayerNorms and the projection of both halves beside the layer
    assert found.count("mtp") == 768 * (4 * 768 + 2 * 2 + 3 * 2 + 8 + 8 * 2 * 1024 + 2 * 768)


def test_a_gated_mlp_in_megatrons_words() -> None:
    """Three matrices instead of two, in the MLP and in experts."""
    plain: dict[str, Any] = {"add_bias_linear": False, "n_inner": 100}
    assert graph(**plain, swiglu=True).count("mlp") == 12 * 3 * 100 * 768
    assert graph(n_inner=100, swiglu=True).count("mlp") == 12 * (3 * 100 * 768 + 2 * 100 + 768)
    experts: dict[str, Any] = {**plain, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
    assert graph(**experts, swiglu=True).count("routed_experts") == 12 * 8 * 3 * 1024 * 768


def test_latent_attention_in_megatrons_words() -> None:
    """Sizes not given are those of Megatron-LM's `training/arguments.py`, under which a query is not compressed."""
    of = graph(multi_latent_attention=True).kinds[1].branches[0].block
    assert of == LatentAttention(768, 12, 0, 32, 128, 64, 128, inner_norms=False, bias=True, dropout=True)
    given: dict[str, Any] = {"q_lora_rank": 48, "kv_lora_rank": 24, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8,
                             "v_head_dim": 12}
    small = graph(multi_latent_attention=True, qk_layernorm=True, n_head=7, **given).kinds[1].branches[0].block
    assert small == LatentAttention(768, 7, 48, 24, 16, 8, 12, inner_norms=True, bias=True, dropout=True)


def test_query_and_key_may_be_normed_by_head() -> None:
    """Like the layer's norm: LayerNorm has a weight and a bias of 64, RMSNorm a weight."""
    for kind, numbers in (("LayerNorm", 2), ("RMSNorm", 1)):
        normed, plain = (graph(normalization=kind, qk_layernorm=on).count("norms") for on in (True, False))
        assert normed - plain == 12 * 2 * numbers * 64


def test_positions_may_be_turned_into_query_and_key() -> None:
    turned = graph(position_embedding_type="rope")
    assert graph().count() - turned.count() == 1024 * 768
    assert [b.block.rotary for b in turned.kinds[1].branches if isinstance(b.block, Attention)] == [True]
    assert not any(b.block.rotary for b in graph().kinds[1].branches if isinstance(b.block, Attention))


def test_heads_may_share_keys_and_values() -> None:
    """A projection of 12 heads for queries, 4 for keys and 4 for values of 64, and as many biases."""
    grouped, whole = graph(num_query_groups=4), graph()
    block = grouped.kinds[1].branches[0].block
    assert isinstance(block, Attention)
    assert (block.q_size, block.kv_size) == (768, 256)
    assert whole.count() - grouped.count() == 12 * 2 * 8 * 64 * (768 + 1)


def test_overrides_may_be_fields_of_the_family() -> None:
    assert model_config("gpt2", {"add_bias_linear": False}, "model")["add_bias_linear"] is False
    with pytest.raises(InputError, match="no such field"):
        model_config("llama-tiny", {"add_bias_linear": False}, "model")


DELTA: dict[str, Any] = {"linear_attention_freq": 3, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
                         "linear_key_head_dim": 64, "linear_value_head_dim": 64}


def test_one_layer_of_so_many_has_attention_beside_delta_nets() -> None:
    """As Megatron-LM d98e8a64's case gpt3_mcore_te_tp2_pp1_gdn."""
    rope: dict[str, Any] = {"position_embedding_type": "rope", "add_bias_linear": False}
    found = graph(**rope, **DELTA, attention_output_gate=True)
    kinds = [found.kinds[layer.kind] for layer in found.layers][1:-3]
    assert [kind.name for kind in kinds] == ["delta_net", "delta_net", "decoder"] * 4
    (gated,) = {kind.branches[0].block for kind in kinds if isinstance(kind.branches[0].block, Attention)}
    assert gated.gated
    linear = 768 * (2 * 256 + 2 * 512 + 2 * 8) + 4 * (2 * 256 + 512) + 2 * 8 + 2 * 64 + 512 * 768
    assert graph(**rope).count("attention") // 12 == 4 * 768 * 768
    assert found.count() - graph(**rope).count() == 8 * (linear - 4 * 768 * 768) + 4 * 768 * 768
    assert graph(**rope, **{**DELTA, "linear_attention_freq": 1}).count() == graph(**rope).count()
    sparse = graph(**{**EXPERTS, **rope, **DELTA}, first_k_dense_replace=2, moe_shared_expert_intermediate_size=64,
                   moe_shared_expert_gate=True)
    names = [sparse.kinds[layer.kind].name for layer in sparse.layers][1:-3]
    assert names[:4] == ["delta_net", "delta_net", "moe_decoder", "moe_delta_net"]
    assert sum(spec.name.endswith("gate_weight") for kind, specs in enumerate(sparse.tensors) for spec in specs
               if sparse.kinds[kind].name == "moe_decoder") == 1


@pytest.mark.parametrize(("changed", "told"), [
    (DELTA, "a gated delta net beside biases"),
    ({**DELTA, "add_bias_linear": False}, "a gated delta net with learned positions"),
    ({**DELTA, "linear_num_value_heads": 6}, "expected a multiple of 4 key heads, got 6"),
    ({"n_routed_experts": 8}, "experts with biases .* are not modelled yet"),
    ({"position_embedding_type": "yarn"}, "expected learned_absolute or rope"),
    ({"normalization": "BatchNorm"}, "expected LayerNorm or RMSNorm"),
    ({"embd_pdrop": 2}, "embd_pdrop: expected a number from 0 to 1, got 2"),
    ({"mtp_num_layers": 1}, "multi-token prediction with learned positions is not modelled yet"),
    ({"moe_router_score_function": "sqrtsoftplus", "n_routed_experts": 8, "num_experts_per_tok": 2,
      "moe_intermediate_size": 8, "add_bias_linear": False}, "expected softmax or sigmoid"),
    ({"n_head": 7}, "n_head: expected a divisor of 768, got 7"),
    ({"num_query_groups": 5}, "num_query_groups: expected a divisor of 12 heads, got 5"),
    ({"activation_function": "relu"}, "activation_function: expected gelu_new or gelu or relu2, got 'relu'"),
    ({"activation_function": "silu"}, "expected gelu_new or gelu or relu2"),
    ({"activation_function": "relu2"}, "relu2 with a gate or with biases"),
    ({"activation_function": "relu2", "add_bias_linear": False, "swiglu": True}, "relu2 with a gate or with biases"),
    ({**EXPERTS, "activation_function": "relu2"}, "relu2 in experts"),
    ({"v_head_dim": 16}, "v_head_dim: served with multi_latent_attention alone"),
    ({"multi_latent_attention": True, "kv_lora_rank": 0}, "kv_lora_rank: expected an integer from 1"),
    ({"multi_latent_attention": "yes"}, "multi_latent_attention: expected true or false"),
    ({"add_cross_attention": True}, "add_cross_attention: not modelled yet")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
