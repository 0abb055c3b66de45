"""Least times of a program: each sum is a lower bound of the timeline, and near it where that resource decides."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.inputs.scenario import Scenario
from simcore.simulation.simulation import placed_simulation
from simcore.simulation.step import written_out
from simcore.timing.least_time import LeastTimes

NANO, LLAMA = "nemotron-3-nano-30b-a3b", "llama-3-8b"


def shares(framework: str, model: str, mesh: dict[str, int], training: dict[str, Any], nodes: str = "dgx-h100",
           ) -> dict[str, float]:
    """Each sum of the rank with the largest one, as a share of the simulated microbatches' time."""
    scenario = Scenario.model_validate({
        "name": "least", "model": model, "framework": framework, "topology": nodes, "mesh": mesh,
        "training": {"seq_len": 4096, **training}})
    simulation = placed_simulation(scenario)
    with written_out(simulation, timed=True):
        assert simulation.timing is not None
        end = max(times.end for times in simulation.timing.times)
        each = [LeastTimes(simulation.programs[c.representative], simulation.routes, simulation.framework)
                for c in simulation.classes]
        found = {"busy": max(int(one.busy().sum()) for one in each),
                 "host": max(int(one.issue().sum()) for one in each), "links": max(one.on_links() for one in each)}
        assert all((one.own_issue() <= one.issue()).all() for one in each)
    return {name: ns / end for name, ns in found.items()}


@pytest.mark.parametrize(("decides", "least", "layout"), [
    ("busy", 0.95, ("fsdp2", LLAMA, {"dp_shard": 8}, {"micro_batch_size": 4})),
    ("busy", 0.9, ("megatron", LLAMA, {"tp": 8}, {"micro_batch_size": 4})),
    ("host", 0.9, ("megatron", NANO, {"tp": 4, "dp_shard": 2, "ep": 2, "etp": 1}, {"method": "lora", "seq_len": 1024})),
    ("links", 0.6, ("fsdp2", LLAMA, {"dp_shard": 128}, {"seq_len": 512})),
    ("links", 0.0, ("ddp", "llama-3.2-1b", {"dp_replicate": 8}, {})),
], ids=lambda value: value if isinstance(value, str) else "")
def test_the_sum_that_decides_is_near_the_step_and_none_is_above(
        decides: str, least: float, layout: tuple[str, str, dict[str, int], dict[str, Any]]) -> None:
    found = shares(*layout)
    assert all(share <= 1 for share in found.values()), found
    assert found[decides] >= least, found
    if least:
        assert max(found, key=lambda name: found[name]) == decides, found


def test_calls_of_layers_are_on_the_compute_stream_and_not_beside_it() -> None:
    found = shares("megatron", LLAMA, {"tp": 8}, {"micro_batch_size": 4})
    assert found["links"] < 0.1, found
