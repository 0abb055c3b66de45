"""Gemma 4's text part: which layers slide, sizes of both kinds of heads, tables, placement, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import Attention, Embedding, Head, Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 6,
                         "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
                         "head_dim": 64, "global_head_dim": 128}


def graph(**changed: Any) -> ModelGraph:
    return build(model_config("gemma-4-31b-text", changed, "model"), "hf")


def mixers(made: ModelGraph) -> list[Attention]:
    blocks = [made.kinds[layer.kind].branches[0].block for layer in made.layers[1:-3]]
    return [block for block in blocks if isinstance(block, Attention)]


def test_whole_layers_have_wide_heads_and_no_projection_of_values() -> None:
    blocks = mixers(graph())
    assert [i for i, block in enumerate(blocks) if not block.window] == [*range(5, 60, 6)]
    assert blocks[0] == Attention(5376, 32, 16, 256, rotary=True, qk_norm=True, window=1024, value_norm=True)
    assert blocks[5] == Attention(5376, 32, 4, 512, rotary=True, qk_norm=True, value_norm=True, values_from_keys=True)


def test_heads_of_whole_layers_follow_the_flag_of_shared_products() -> None:
    assert [(b.num_kv_heads, b.values_from_keys) for b in mixers(graph(attention_k_eq_v=False))[5:6]] == [(16, False)]
    assert [b.num_kv_heads for b in mixers(graph(num_global_key_value_heads=None))[5:6]] == [16]


def test_the_last_layer_is_a_whole_one() -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    assert [block.window for block in mixers(graph(num_hidden_layers=3, layer_types=types))] == [0, 1024, 0]


def test_tables_of_both_sizes_and_a_cap_on_logits() -> None:
    made = graph()
    stem, head = made.kinds[0], next(kind for kind in made.kinds if isinstance(kind.block, Head))
    assert stem.block == Embedding(262144, 5376, 256, window=1024, further_dim=512)
    assert [kind.tables for kind in made.kinds if kind.branches] == [512, 256]
    assert isinstance(head.block, Head)
    assert head.block.capped
    assert made.architecture.buffers == (("model.rotary_emb.full_attention_inv_freq", 2048),
                                         ("model.rotary_emb.sliding_attention_inv_freq", 1024))
    whole = graph(layer_types=["full_attention"] * 60)
    assert [kind.tables for kind in whole.kinds if kind.branches] == [0]
    assert whole.kinds[0].block == Embedding(262144, 5376, 512)


def test_the_unified_model_has_the_same_layers_and_a_window_of_its_own() -> None:
    fields = model_config("gemma-4-12b-text", None, "model")
    made = build({key: value for key, value in fields.items() if key not in ("sliding_window", "head_dim")}, "hf")
    assert made.architecture.family == "gemma4_text"
    assert mixers(made)[4:6] == [
        Attention(3840, 16, 8, 256, rotary=True, qk_norm=True, window=1024, value_norm=True),
        Attention(3840, 16, 1, 512, rotary=True, qk_norm=True, value_norm=True, values_from_keys=True)]


def test_experts_stand_beside_an_mlp_behind_norms_of_their_own() -> None:
    made = build(model_config("gemma-4-26b-a4b", {}, "model"), "hf")
    kind = next(kind for kind in made.kinds if kind.joined)
    assert [(branch.norm, branch.behind) for branch in kind.branches[1:]] == [
        ("pre_feedforward_layernorm", "post_feedforward_layernorm_1"),
        ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_2")]
    assert kind.branches[2].block == Moe(2816, 128, 8, 704, 0, gated=True, gelu=True, router="scaled_softmax")
    text = {**model_config("gemma-4-31b-text", {}, "model"), "enable_moe_block": True, "moe_intermediate_size": 8}
    for counts, message in (({}, "num_experts"), ({"num_experts": 4, "top_k_experts": 5}, "at most 4 experts")):
        with pytest.raises(InputError, match=message):
            build({**text, **counts}, "hf")


def test_the_last_layers_of_e2b_take_keys_and_values_of_two_before_them() -> None:
    """Users of one layer's keys and values follow each other (`kv_sharing_modes`); their MLPs are twice as wide."""
    made = build(model_config("gemma-4-e2b", {}, "model"), "hf")
    layers = [made.kinds[layer.kind] for layer in made.layers if made.kinds[layer.kind].branches]
    blocks = [block for kind in layers if isinstance(block := kind.branches[0].block, Attention)]
    assert [place for place, block in enumerate(blocks) if block.borrows] == [*range(15, 35)]
    assert [place for place, block in enumerate(blocks) if block.lent] == [*range(13, 33)]
    for first, kind in ((13, 512), (14, 0)):
        users, place = [first], first
        while blocks[place].lent:
            place += blocks[place].lent
            users.append(place)
        assert users == [first, *(one for one in range(15, 35) if blocks[one].window == kind)]
    assert [kind.branches[1].block.ffn for kind in layers] == [6144] * 15 + [12288] * 20  # type: ignore[union-attr]
    assert [kind.own_input.last for kind in layers if kind.own_input] == [False] * 34 + [True]
    assert [layer.path for layer in made.layers[:3]] == [
        "model.language_model.embed_tokens", "model.audio_tower", "model.embed_audio"]


@pytest.mark.parametrize(("field", "value"), [
    ("attention_bias", True), ("use_bidirectional_attention", "all"),
    ("hidden_size_per_layer_input", 256), ("num_kv_shared_layers", 60), ("num_kv_shared_layers", 56),
    ("hidden_activation", "silu")])
def test_what_is_not_modelled_is_refused_by_its_name(field: str, value: Any) -> None:
    fields = {**model_config("gemma-4-31b-text", {}, "model"), field: value}
    with pytest.raises(InputError, match=field):
        build(fields, "hf")


@pytest.mark.parametrize(("framework", "mesh", "parts"), [
    ("fsdp2", {"dp_shard": 2}, 2), ("fsdp1", {"dp_shard": 2}, 2), ("ddp", {"dp_replicate": 2}, 1),
    ("zero1", {"dp_shard": 2}, 1), ("automodel", {"dp_shard": 2}, 2)])
def test_it_is_placed_and_simulated(framework: str, mesh: dict[str, int], parts: int) -> None:
    """`parts`: in how many the parameters lie."""
    model = {"config": "gemma-4-31b-text", "overrides": SMALL}
    made = graph(**SMALL)
    rest = small.plan_of(framework, mesh, model=model).at_rest()
    assert {name: part.num_params * parts for name, part in rest.items()} == {
        name: made.count(name) for name in ("embedding", "attention", "mlp", "norms")}
    report = simulate(small.scenario(framework, mesh, model=model))
    assert report.status == "ok", report.problems


def test_flash_attention_has_no_kernel_for_wide_heads() -> None:
    wide, narrow = (simulate(small.scenario(
        "fsdp2", {"dp_shard": 2}, options={"attn_implementation": "flash_attention_2"},
        model={"config": "gemma-4-31b-text", "overrides": {**SMALL, "global_head_dim": size}})) for size in (512, 128))
    assert "at most 256" in wide.problems[0].message
    assert narrow.status == "ok"
