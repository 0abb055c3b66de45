"""Phi-2, StarCoder 2, Cohere 2, GLM-4 and Seed-OSS: what their layers are, what runs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import InputError
from simcore.frameworks.deepspeed.modules.order import backward_calls, forward_calls, replayed
from simcore.models.blocks import Attention, Head
from simcore.models.graph import ModelGraph, build, model_config
from simcore.simulate import simulate

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "num_hidden_layers": 4,
                         "num_attention_heads": 8, "num_key_value_heads": 4}
HEADS = {"glm-4-9b-chat": 32, "glm-4-32b-0414": 32, "seed-oss-36b": 32, "ernie-4.5-0.3b": 32}
HEADS |= {"afm-4.5b": 32, "hunyuan-0.5b": 32, "nemotron-mini-4b": 32}
PRESETS = ("phi-2", "phi-1.5", "command-r7b", "starcoder2-3b", "olmo-3-7b", *HEADS)


def graph(preset: str, **changed: Any) -> ModelGraph:
    return build(model_config(preset, changed, "model"), "hf")


def test_every_fourth_layer_of_cohere_2_sees_all_and_turns_nothing() -> None:
    found = graph("command-r7b")
    mixers = [found.kinds[layer.kind].branches[0].block for layer in found.layers[1:33]]
    assert all(isinstance(mixer, Attention) for mixer in mixers)
    assert [(mixer.window, mixer.rotary) for mixer in mixers if isinstance(mixer, Attention)] == [
        (4096, True), (4096, True), (4096, True), (0, False)] * 8


def test_every_fourth_layer_of_olmo_3_sees_all_and_tables_are_two() -> None:
    found = graph("olmo-3-7b")
    mixers = [found.kinds[layer.kind].branches[0].block for layer in found.layers[1:33]]
    assert [mixer.window for mixer in mixers if isinstance(mixer, Attention)] == [4096, 4096, 4096, 0] * 8
    assert len(found.architecture.buffers) == 2


def test_a_head_with_a_bias_and_layers_side_by_side() -> None:
    found = graph("phi-2")
    head = next(kind.block for kind in found.kinds if isinstance(kind.block, Head))
    assert head.bias
    assert found.kinds[1].beside
    assert not graph("glm-4-9b-chat").kinds[1].beside


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("phi-2", {"qk_layernorm": True}), ("phi-2", {"hidden_act": "relu"}), ("command-r7b", {"use_qk_norm": True}),
    ("command-r7b", {"attention_bias": True}), ("starcoder2-3b", {"residual_dropout": 0.0}),
    ("starcoder2-3b", {"hidden_act": "silu"}), ("seed-oss-36b", {"mlp_bias": True}),
    ("seed-oss-36b", {"attention_out_bias": True}), ("ernie-4.5-0.3b", {"use_bias": True}),
    ("afm-4.5b", {"hidden_act": "silu"}), ("nemotron-mini-4b", {"mlp_bias": True}),
    ("olmo-3-7b", {"attention_bias": True}), ("hunyuan-0.5b", {"attention_bias": True})]


def test_what_is_not_modelled_is_refused() -> None:
    for preset, changed in REFUSED:
        with pytest.raises(InputError, match=next(iter(changed)) if "residual_dropout" not in changed else "embedding"):
            graph(preset, **changed)


def test_they_run() -> None:
    """Under Automodel and FSDP2, whose shards together are the model; frozen with adapters too."""
    for preset in PRESETS:
        size = {**SMALL, **({"head_dim": HEADS[preset]} if preset in HEADS else {})}
        model = {"config": preset, "overrides": size}
        for framework in ("fsdp2", "automodel"):
            report = simulate(small.scenario(framework, {"dp_shard": 2}, model=model))
            assert report.status == "ok", (preset, report.problems)
            held = sum(part.num_params for part in report.ranks[0].at_rest.values())
            assert held == pytest.approx(graph(preset, **size).count() / 2, rel=0.01)


def test_attention_of_plain_operators_drops_nothing() -> None:
    model = {"config": "seed-oss-36b", "overrides": {**SMALL, "head_dim": 32}}
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, model=model,
                                     options={"attn_implementation": "eager"}))
    assert [problem.message for problem in report.problems] == ["not yet: dropout in attention of plain operators"]


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_replay_under_zero_3_begins_at_dropout_behind_the_last_block_if_it_drops(share: float) -> None:
    model = {"config": "phi-2", "overrides": SMALL | {"resid_pdrop": share}}
    plan = small.plan_of("zero3", {"dp_shard": 2}, model=model, recompute="full")
    begin, left_off = replayed(plan, 1)
    assert begin == (2 if share else 4)  # the layer and the dropout; the MLP and its last product too
    assert left_off == 0
    replay, _ = backward_calls(plan, 1)
    assert len(replay) - begin == len(forward_calls(plan, 1)) - 1 - (not share)


def test_zero_3_calls_norms_behind_the_rotation_before_the_output_projection() -> None:
    size = {**SMALL, "head_dim": 32}
    plan = small.plan_of("zero3", {"dp_shard": 2}, model={"config": "hunyuan-0.5b", "overrides": size})
    names = [plan.of_layer(1)[call.own[0][0]].spec.path for call in forward_calls(plan, 1) if call.own]
    assert names[1:7] == [f"self_attn.{name}" for name in (
        "q_proj", "k_proj", "v_proj", "query_layernorm", "key_layernorm", "o_proj")]
