"""The order in which modules of transformers' layers are called."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.deepspeed.modules.order import backward_calls, forward_calls, readiness
from simcore.frameworks.deepspeed.modules.units import Calls
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
    assert [call.own for call in (*before[:3], *after)] == [call.own for call in backward_calls(plan(), LAYER)[1]]


def test_the_linear_that_asks_for_a_replay_is_open_until_it_is_over() -> None:
    whole = plan("full")
    before, _ = backward_calls(whole, LAYER)
    assert names(whole, [before[2], before[-1]]) == ["down_proj", "down_proj"]
    assert before[2].released == ()
    assert before[-1].released is None


# ---- experts --------------------------------------------------------------------------------------------------------
def of_experts(framework: str, **given: Any) -> tuple[Plan, Calls, Calls]:
    """A plan of a small mixture, and the calls of its first layer with a router in forward and in backward."""
    made = small.plan_of(framework, {"dp_shard": 2}, **given)
    layer = next(layer for layer in made.layers if any(p.spec.module == "router" or "gate.weight" in p.spec.name
                                                       for p in made.of_layer(layer)))
    return made, forward_calls(made, layer), backward_calls(made, layer)[1]


MIXTURES = {"hf": 1, "hf4": 2}
QWEN = {"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 1, "num_experts": 4, "num_experts_per_tok": 2}}


@pytest.mark.parametrize("implementation", MIXTURES)
def test_a_leaf_is_called_once_for_all_that_is_in_it(implementation: str) -> None:
    """In backward for each of its outputs; ZeRO-2 has no leaves."""
    made, forward, backward = of_experts("zero3", model=QWEN, implementation=implementation)
    (leaf,) = (call for call in forward if call.is_leaf)
    inside = {number for number, p in enumerate(made.of_layer(LAYER)) if p.spec.name.startswith("mlp.")}
    assert {number for number, _ in leaf.needed} == inside
    assert sum(call.is_leaf for call in backward) == MIXTURES[implementation]
    assert not any(call.is_leaf for call in of_experts("zero2", model=QWEN, implementation=implementation)[1])


def test_a_leaf_has_the_parameters_of_an_expert_together() -> None:
    made, forward, _ = of_experts("zero3", model=QWEN, implementation="hf4")
    (leaf,) = (call for call in forward if call.is_leaf)
    of = made.of_layer(LAYER)
    assert [(of[number].spec.name.split(".")[-2], expert) for number, expert in leaf.needed] == [
        ("gate", 0), *((part, expert) for expert in range(4) for part in ("gate_proj", "up_proj", "down_proj"))]


def test_without_a_leaf_each_expert_is_called_after_the_other() -> None:
    made, forward, backward = of_experts("zero3", implementation="hub")
    of = made.of_layer(next(layer for layer in made.layers if any(p.spec.copies > 1 for p in made.of_layer(layer))))
    parts, again = ([(of[number].spec.name.split(".")[-2], expert) for call in calls for number, expert in call.own
                     if of[number].spec.copies > 1] for calls in (forward, backward))
    assert parts == [(part, expert) for expert in range(8) for part in ("up_proj", "down_proj")]
    assert again == parts[::-1]


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


@pytest.mark.parametrize(("config", "order"), [("qwen3-30b-a3b", ["gate_proj", "up_proj", "down_proj"]),
                                               ("mixtral-8x7b", ["w1", "w3", "w2"])])
def test_zero2_has_no_leaves_and_calls_an_experts_linears_as_they_run(config: str, order: list[str]) -> None:
    made = small.plan_of("zero2", {"dp_shard": 2}, model={"config": config, "overrides": {"num_hidden_layers": 1}},
                         implementation="hf4")
    of = made.of_layer(LAYER)
    found = [of[number].spec.name.split(".")[-2] for call in forward_calls(made, LAYER) for number, expert in call.own
             if of[number].spec.copies > 1 and expert == 3]
    assert found == order
