"""DeepSeek: published counts, latent attention, dense first layers, further tokens, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.models.blocks import CompressedAttention, LatentAttention, Moe, Streams
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate


def graph(preset: str, code: str = "hf", **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), code)


@pytest.mark.parametrize(("preset", "parameters", "stored"), [
    ("deepseek-v2-lite", 15_706_484_224, 15_706_484_224), ("deepseek-v3", 671_026_404_352, 671_026_419_200),
    ("moonlight-16b-a3b", 15_960_108_544, 15_960_110_208)])
def test_published_counts(preset: str, parameters: int, stored: int) -> None:
    """671,026,419,200 is published: checkpoints count the correction biases, one an expert and layer, no parameters."""
    made = graph(preset)
    buffers = sum(t.numel for layer in made.layers for t in made.tensors[layer.kind] if t.is_buffer)
    assert made.count() == parameters
    assert made.count() + buffers == stored


def test_latent_attention_of_v3() -> None:
    """Query by rank 1536, key and value by 512, 128 heads of 128 + 64 and 128."""
    block = graph("deepseek-v3").kinds[1].branches[0].block
    assert block == LatentAttention(7168, 128, 1536, 512, 128, 64, 128)
    assert (block.q_size, block.kv_size, block.out_size) == (128 * 192, 128 * 256, 128 * 128)
    shapes = {t.name: t.shape for t in graph("deepseek-v3").tensors[1]}
    assert shapes["self_attn.kv_a_proj_with_mqa.weight"] == (576, 7168)
    assert "self_attn.q_proj.weight" not in shapes
    assert "self_attn.q_proj.weight" in {t.name for t in graph("deepseek-v2-lite").tensors[1]}


def test_experts_of_a_token_are_in_four_of_eight_groups() -> None:
    blocks = {branch.block for kind in graph("deepseek-v3").kinds for branch in kind.branches}
    assert [(b.num_groups, b.chosen_groups) for b in blocks if isinstance(b, Moe)] == [(8, 4)]
    for groups, few in ((7, 4), (8, 9), (64, 1)):
        with pytest.raises(InputError, match="n_group: expected equal groups"):
            graph("deepseek-v3", n_group=groups, topk_group=few)


def test_the_first_layers_are_dense() -> None:
    assert graph("deepseek-v3", num_hidden_layers=5).architecture.pattern == "DDDEE"
    assert graph("deepseek-v3", num_hidden_layers=2).architecture.pattern == "DD"


def test_only_v3_corrects_its_routers_choice() -> None:
    assert not [t for specs in graph("deepseek-v2-lite").tensors for t in specs if t.is_buffer]
    assert [t.name for specs in graph("deepseek-v3").tensors for t in specs if t.is_buffer] == [
        "mlp.gate.e_score_correction_bias"]


def test_a_further_token_has_a_layer_two_norms_and_a_projection() -> None:
    """DeepSeek-V3 report, section 2.2: the module is one MoE layer and M of 7168 x 14336; embedding and head shared."""
    more = graph("deepseek-v3", "megatron", mtp_num_layers=1)
    layer = sum(t.numel * t.copies for t in more.tensors[2] if t.is_owned)
    assert more.count("mtp") == layer + 2 * 7168 * 7168 + 3 * 7168
    assert more.count() - more.count("mtp") == graph("deepseek-v3").count()


@pytest.mark.parametrize(("changed", "told"), [
    ({"mtp_num_layers": 1}, "mtp_num_layers: this implementation builds no modules of multi-token prediction"),
    ({"num_key_value_heads": 8}, "expected 128, as many as heads"),
    ({"moe_layer_freq": 2}, "moe_layer_freq: experts in some layers only"),
    ({"attention_bias": True}, "attention_bias: not modelled yet")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph("deepseek-v3", **changed)


def test_attention_and_routers_of_the_fourth() -> None:
    made = build(model_config("deepseek-v4-flash", {"num_hidden_layers": 5}, "model"), "hf")
    kinds = [made.kinds[layer.kind] for layer in made.layers[1:6]]
    attention = [kind.branches[0].block for kind in kinds]
    assert [isinstance(block, CompressedAttention) and (block.every, block.overlaps, block.indexer is not None)
            for block in attention] == [(0, False, False)] * 2 + [(4, True, True), (128, False, False), (4, True, True)]
    assert [isinstance(block, Moe) and block.table for block in (kind.branches[1].block for kind in kinds)] == [
        129280] * 3 + [0] * 2
    assert {kind.streams for kind in kinds} == {Streams(4, 20)}


@pytest.mark.parametrize(("changed", "message"), [
    ({"compress_ratios": [0, 3]}, "expected 2 or more of 0, 4, 128"), ({"num_key_value_heads": 2}, "expected 1"),
    ({"o_groups": 7}, "a divisor of"), ({"scoring_func": "softmax"}, "not modelled yet"),
    ({"n_shared_experts": 2}, "expected 1"), ({"layer_types": ["sliding_attention"]}, "expected 2 or more")])
def test_what_the_fourth_refuses(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(model_config("deepseek-v4-flash", {"num_hidden_layers": 2} | changed, "model"), "hf")


def test_a_step_of_the_fourth_is_not_simulated_yet() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, model={"config": "deepseek-v4-flash", "overrides": {
        "num_hidden_layers": 2}}))
    assert "attention over compressed keys" in report.problems[0].message
