"""Frozen parameters under ZeRO-3: what a replay pins, and which gathered copies the graph holds."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import small
from simcore.cli.sheets.first_screen import first_screen
from simcore.frameworks.deepspeed.prefetch_trace import LivePackedWeights, recorded, seen_by_nodes
from simcore.placement.plan import Plan
from simcore.simulate import simulate

NOTHING_STAYS = {"stage3_param_persistence_threshold": 0}


def plan(method: str = "lora", recompute: str = "full", **given: Any) -> Plan:
    return small.plan_of("zero3", {"dp_shard": 2}, model="llama-tiny", method=method, recompute=recompute,
                         options=NOTHING_STAYS, **given)


def pinned(made: Plan) -> list[set[str]]:
    """Names of what is released after each replay, in order."""
    pins, found = LivePackedWeights(made), []
    for at, (keys, _) in enumerate(recorded(made)):
        pins.called(at, list(keys))
        found.append({made.of_layer(layer)[number].spec.name for layer, number, _ in pins.released(at + 1)})
    return [names for names in found if names]


def test_a_replay_pins_what_is_frozen_until_the_linear_that_asked_for_it_is_done() -> None:
    groups = pinned(plan())
    assert len(groups) == plan().graph.num_blocks
    assert all("mlp.down_proj.weight" in names for names in groups)
    assert not any("lora" in name for names in groups for name in names)


def test_without_a_replay_nothing_is_pinned() -> None:
    assert pinned(plan(recompute="none")) == []


def test_where_the_last_linear_saves_nothing_the_mlp_is_who_asked() -> None:
    """Its weights go when all of it is done, and the last linear was not called again."""
    assert all("mlp.down_proj.weight" in names for names in pinned(plan(lora={"target_modules": ["q_proj"]})))
    groups = pinned(plan("qlora", lora={"target_modules": ["q_proj"]}))
    assert groups
    assert all("mlp.down_proj.weight" not in names and "mlp.up_proj.weight" in names for names in groups)


def test_nodes_see_packed_weights_alone() -> None:
    assert seen_by_nodes(plan()) == set()
    made = plan("qlora")
    packed = {(layer, number, 0) for layer in made.layers for number, p in enumerate(made.of_layer(layer))
              if p.policy.at_rest.packed}
    assert seen_by_nodes(made) == packed


def test_of_the_lowest_layer_nodes_see_what_has_a_gradient_to_pass_on() -> None:
    made = plan("qlora", recompute="none")
    seen = {made.of_layer(layer)[number].spec.name for layer, number, _ in seen_by_nodes(made) if layer == 1}
    assert "self_attn.o_proj.weight" in seen
    assert "self_attn.q_proj.weight" not in seen


@pytest.mark.parametrize(("stage", "method", "told"), [
    ("zero3", "qlora", True), ("zero3", "lora", False), ("zero2", "qlora", False)])
def test_weights_in_four_bits_that_stay_are_told_on_the_first_screen(stage: str, method: str, told: bool) -> None:
    report = simulate(small.scenario(stage, {"dp_shard": 4}, model="llama-tiny", method=method, recompute="full"))
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(*first_screen([report], 80), sep="\n", soft_wrap=True)
    line = "gathered 4-bit weights: each stays, whole, until backward is over, also with recompute"
    assert (line in " ".join(stream.getvalue().split())) == told
