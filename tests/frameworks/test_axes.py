"""Axes of the mesh that a framework says it may have: all others are refused in its own words, never answered."""

from __future__ import annotations

import pytest

from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.inputs.scenario import Scenario
from simcore.models.graph import build, model_config
from simcore.placement.capabilities import ALL_AXES
from simcore.simulate import check


def closed(framework: str, model: str) -> list[str]:
    adapter = framework_adapter(framework)
    fields = model_config(model, None, "model")
    graph = build(fields, adapter.implementation_of(str(fields["model_type"]), "full"))
    return [axis for axis in ALL_AXES if axis not in adapter.axes(graph)]


@pytest.mark.parametrize(("framework", "model", "axis"), [
    (framework, model, axis) for framework in known_frameworks() for model in ("qwen3-30b-a3b", "llama-3.2-1b")
    for axis in closed(framework, model)])
def test_an_axis_that_a_framework_does_not_have_is_refused(framework: str, model: str, axis: str) -> None:
    spare = "dp_replicate" if framework == "ddp" else "dp_shard"
    for beside in ({}, {spare: 4}):
        scenario = Scenario.model_validate({
            "name": "base", "model": model, "topology": "dgx-h100", "framework": framework,
            "mesh": {**beside, axis: 2}, "training": {"seq_len": 1024}})
        (problem, *_) = check(scenario).problems
        assert not problem.message.endswith(f"with {axis} 2")  # what refuses is the framework's table


def test_every_framework_may_have_some_axis() -> None:
    names = [name for name in known_frameworks() if {"dp_replicate", "dp_shard"} <= set(closed(name, "llama-3.2-1b"))]
    assert not names
