"""The order in which modules of transformers' layers are called."""

from __future__ import annotations

import pytest

import small
from simcore.frameworks.deepspeed.module_order import backward_calls, forward_calls, readiness
from simcore.frameworks.deepspeed.module_units import Calls
from simcore.placement.plan import Plan

LAYER = 1


def plan(recompute: str = "none") -> Plan:
    return small.plan_of("zero3", model="llama-tiny", recompute=recompute)


def names(plan: Plan, calls: Calls) -> list[str]:
    """The modules of a layer; containers and activations are dots."""
    of = plan.of_layer(LAYER)
    return [of[call.own[0][0]].spec.name.removesuffix(".weight").rpartition(".")[2] if call.own else "."
            for call in calls]


def test_a_layer_is_called_from_the_outside_in() -> None:
    assert names(plan(), forward_calls(plan(), LAYER)) == [
        ".", "input_layernorm", ".", "q_proj", "k_proj", "v_proj", "o_proj",
        "post_attention_layernorm", ".", "gate_proj", ".", "up_proj", "down_proj"]


def test_backward_is_the_reverse_but_containers_come_first() -> None:
    before, after = backward_calls(plan(), LAYER)
    assert before == []
    assert names(plan(), after) == [
        ".", ".", "down_proj", "up_proj", ".", "gate_proj", "post_attention_layernorm",
        ".", "o_proj", "v_proj", "k_proj", "q_proj", "input_layernorm"]


def test_a_replay_begins_when_the_last_linear_needs_its_input() -> None:
    whole = plan("full")
    before, after = backward_calls(whole, LAYER)
    assert names(whole, before) == [".", ".", "down_proj", *names(whole, forward_calls(whole, LAYER)[1:])]
    assert [*before[:3], *after] == backward_calls(plan(), LAYER)[1]


def adapted(layer: int, *targets: str, method: str = "lora", recompute: str = "none") -> tuple[Plan, list[str]]:
    made = small.plan_of("zero3", model="llama-tiny", method=method, recompute=recompute,
                         lora={"target_modules": list(targets)})
    before, after = backward_calls(made, layer)
    return made, inner_names(made, layer, [*before, *after])


def inner_names(plan: Plan, layer: int, calls: Calls) -> list[str]:
    """The modules inside a layer's blocks; containers and activations are dots."""
    of = plan.of_layer(layer)
    return [of[call.own[0][0]].spec.name.removesuffix(".weight").partition(".")[2] if call.own else "."
            for call in calls]


def test_an_adapter_is_called_around_and_behind_its_linear() -> None:
    """In backward too: the module that holds all (as lora_a), lora_b, lora_a, a dropout, the linear."""
    made, backward = adapted(LAYER + 1, "down_proj")
    forward = inner_names(made, LAYER + 1, forward_calls(made, LAYER + 1))
    assert forward[-5:] == ["down_proj.lora_a", "down_proj", ".", "down_proj.lora_a", "down_proj.lora_b"]
    assert backward[:7] == [".", ".", "down_proj.lora_a", "down_proj.lora_b", "down_proj.lora_a", ".", "down_proj"]


def test_linears_below_which_nothing_is_trained_are_not_called_in_backward() -> None:
    _, lowest = adapted(LAYER, "q_proj")
    _, other = adapted(LAYER + 1, "q_proj")
    assert "q_proj" in other
    assert "k_proj" in other
    assert "q_proj" not in lowest
    assert "k_proj" not in lowest
    assert "o_proj" in lowest
    assert "q_proj" in adapted(LAYER, "q_proj", recompute="full")[1]  # the embedding's output requires a gradient


def test_a_replay_ends_where_nothing_more_is_saved() -> None:
    """A packed linear saves nothing: backward passes it by, and the replay stops before it."""
    plain, packed = (adapted(LAYER, "q_proj", method=method, recompute="full")[1] for method in ("lora", "qlora"))
    assert (plain.count("down_proj"), packed.count("down_proj")) == (2, 1)
    assert (plain.count("up_proj"), packed.count("up_proj")) == (2, 2)


@pytest.mark.parametrize("model", ["llama-tiny", "nemotron-3-tiny", "granite-4.0-h-tiny", "granite-4.0-h-micro",
                                   "qwen1.5-moe-a2.7b", "gpt-oss-20b", "deepseek-v2-lite", "bamba-9b", "mamba2-130m"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_every_parameter_is_called_for(recompute: str, model: str) -> None:
    """Those of a container too (Mamba's vectors), and of an MLP beside the module of the experts."""
    made = small.plan_of("zero3", model=model, recompute=recompute)
    for layer in made.layers:
        owned = {number for number, p in enumerate(made.of_layer(layer)) if not p.spec.is_buffer}
        assert {number for call in forward_calls(made, layer) for number, _ in call.needed} == owned
        assert {number for calls in backward_calls(made, layer) for call in calls for number, _ in call.needed} == owned


def test_a_bias_is_ready_before_its_weight_but_for_zero3s_linear() -> None:
    made = small.plan_of("zero2", model={"config": "qwen2.5-7b", "overrides": {"num_hidden_layers": 1}})
    of = made.of_layer(LAYER)
    ready = [of[number].spec.name for number, _ in readiness(made, LAYER)]
    assert ready.index("self_attn.v_proj.bias") + 1 == ready.index("self_attn.v_proj.weight")
    own = [of[number].spec.name for number, _ in readiness(made, LAYER, weight_first=True)]
    assert own.index("self_attn.v_proj.weight") + 1 == own.index("self_attn.v_proj.bias")
    assert sorted(own) == sorted(ready)
