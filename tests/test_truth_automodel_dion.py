"""Muon of the `dion` package under Automodel: `tests/truth/probe_automodel_dion.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.common.optimizer_memory import optimizer_sizes
from simcore.placement.plan import Plan

FOUND: dict[str, Any] = json.loads((ROOT / "tests/truth/optimizers/automodel-dion-7452a58.json").read_text("utf-8"))
RAN = {name: case for name, case in FOUND["cases"].items() if "error" not in case}
STOPPED = {name: case for name, case in FOUND["cases"].items() if "error" in case}
PRESETS = {"llama": "llama-tiny", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "mistral": "mistral-7b-v0.3"}
FORMATS = {"bfloat16": "bf16", "float32": "fp32"}
NAMES = {"momentum_buffer": "momentum", "exp_avg": "momentum", "exp_avg_sq": "variance"}


def asked(case: dict[str, Any]) -> tuple[str, dict[str, int], dict[str, Any]]:
    fields = dict(case["fields"])
    given: dict[str, Any] = {
        "model": {"config": PRESETS[case["family"]], "overrides": fields},
        "optimizer": {"name": "muon", "implementation": "dion"}, "precision": {"params": FORMATS[case["dtype"]]}}
    if case["nesterov"]:
        given["options"] = {"nesterov": True}
    return "automodel", {"dp_shard": case["world"], "dp_replicate": case["replicas"]}, given


def plan_of(case: dict[str, Any]) -> Plan:
    framework, mesh, given = asked(case)
    return small.plan_of(framework, mesh, **given)


def states(plan: Plan) -> Iterator[tuple[str, dict[str, int]]]:
    for number, layer in enumerate(plan.layers):
        for placed in plan.of_layer(layer):
            if placed.trainable and not placed.spec.tied:
                yield f"{number} {placed.spec.name}", {NAMES[name]: size for name, size in placed.states}


def flat(of: Any) -> list[tuple[str, dict[str, int]]]:
    """Last words of names, without where they are, and sizes: in the model's order."""
    return [(name.split(" ")[-1].rpartition("layers.")[2].split(".", 1)[-1], sizes) for name, sizes in of]


@pytest.mark.parametrize("name", RAN)
def test_states_step_and_messages_are_its_own(name: str) -> None:
    """Bytes of each state in order, of the step's temporary memory, and of all-to-alls one by one."""
    case = RAN[name]
    plan = plan_of(case)
    assert [sizes for _, sizes in states(plan)] == list(case["states"].values())
    sizes = optimizer_sizes(plan)
    assert sizes.held == case["step"]
    assert [["all_to_all", one // case["world"], case["world"], "bfloat16"] for one in sizes.messages
            ] == case["messages"]


@pytest.mark.parametrize("name", STOPPED)
def test_what_stops_is_refused_in_its_words(name: str) -> None:
    framework, mesh, given = asked(STOPPED[name])
    words = STOPPED[name]["error"].partition(": ")[2]
    with pytest.raises(IllegalLayout) as caught:
        small.prepared(framework, mesh, **given)
    assert words.rstrip(".")[:40] in str(caught.value)


DION = {"name": "muon", "implementation": "dion"}


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"dp_shard": 2}, {"optimizer": {"implementation": "dion"}}, "adamw of dion"),
    ({"dp_shard": 2, "tp": 2}, {"optimizer": DION}, "dion's Muon with tp"),
    ({"dp_shard": 2, "cp": 2}, {"optimizer": DION}, "dion's Muon with cp"),
    ({"dp_shard": 2}, {"optimizer": DION, "method": "lora"}, "adapters with dion's Muon"),
    ({"dp_shard": 2}, {"optimizer": DION | {"momentum": 0.9}}, "a factor of momenta"),
    ({"dp_shard": 2}, {"optimizer": DION, "model": "qwen3-30b-a3b"}, "dion's Muon of qwen3_moe"),
    ({"dp_shard": 2}, {"optimizer": {"name": "muon"}}, "muon under automodel")])
def test_what_was_not_compared_is_not_served(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    with pytest.raises(NotYet, match=told):
        small.prepared("automodel", mesh, **{"model": "llama-tiny", **given})


def test_enough_layouts_were_drawn() -> None:
    assert len(FOUND["cases"]) >= 40
    assert len(RAN) > len(STOPPED)
