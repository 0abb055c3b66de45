"""Axes of the mesh that a framework says it may have: all others are refused in its own words, never answered."""

from __future__ import annotations

import pytest

from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.inputs.scenario import Scenario
from simcore.placement.capabilities import ALL_AXES
from simcore.simulate import check

OWN = {framework: framework_adapter(framework).implementation_of("qwen3_moe", "full") for framework in known_frameworks()}


@pytest.mark.parametrize(("framework", "axis"), [
    (framework, axis) for framework, implementation in OWN.items()
    for axis in ALL_AXES if axis not in framework_adapter(framework).axes(implementation)])
def test_an_axis_that_a_framework_does_not_have_is_refused(framework: str, axis: str) -> None:
    spare = "dp_replicate" if framework == "ddp" else "dp_shard"
    for beside in ({}, {spare: 4}):
        scenario = Scenario.model_validate({
            "name": "base", "model": "qwen3-30b-a3b", "topology": "dgx-h100", "framework": framework,
            "mesh": {**beside, axis: 2}, "training": {"seq_len": 1024}})
        (problem, *_) = check(scenario).problems
        assert not problem.message.endswith(f"with {axis} 2")  # what refuses is the framework's table


def test_every_framework_may_have_some_axis() -> None:
    for framework, implementation in OWN.items():
        assert set(framework_adapter(framework).axes(implementation)) & {"dp_replicate", "dp_shard"}
