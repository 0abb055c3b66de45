"""Lower bounds of memory and time: never above what the whole simulation gives, and near it where nothing waits."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.inputs.scenario import Scenario
from simcore.simulate import simulate
from simcore.simulation.bounds import is_too_large_at_rest, least_step_ns
from simcore.simulation.simulation import placed_simulation
from simcore.simulation.step import Request, step_of

NANO, LLAMA = "nemotron-3-nano-30b-a3b", "llama-3-8b"
LAYOUTS: list[tuple[str, str, dict[str, int], dict[str, Any]]] = [
    ("fsdp2", LLAMA, {"dp_shard": 8}, {}),
    ("fsdp2", NANO, {"dp_shard": 8}, {"method": "lora"}),
    ("automodel", NANO, {"dp_shard": 8, "ep": 8}, {"global_batch_size": 128}),
    ("automodel", NANO, {"pp": 2, "dp_shard": 4, "ep": 4}, {"global_batch_size": 64}),
    ("megatron", NANO, {"tp": 2, "dp_shard": 4, "ep": 4, "etp": 1}, {"global_batch_size": 64}),
    ("megatron", LLAMA, {"pp": 4, "tp": 2}, {"global_batch_size": 64, "recompute": "full"}),
    ("zero3", LLAMA, {"dp_shard": 8}, {"global_batch_size": 32}),
    ("zero2", LLAMA, {"dp_shard": 7}, {"offload": {"optimizer": "host"}}),
    ("fsdp1", LLAMA, {"dp_shard": 8}, {"global_batch_size": 32}),
    ("ddp", "llama-3.2-1b", {}, {"method": "lora"}),
]


def scenario(framework: str, model: str, mesh: dict[str, int], training: dict[str, Any], **more: Any) -> Scenario:
    return Scenario.model_validate({"name": "bound", "model": model, "framework": framework, "topology": "dgx-h100",
                                    "mesh": mesh, "training": {"seq_len": 4096, **training}, **more})


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"{one[0]}-{one[2]}")
def test_a_step_takes_at_least_its_kernels(layout: tuple[str, str, dict[str, int], dict[str, Any]]) -> None:
    asked = scenario(*layout)
    simulation = placed_simulation(asked)
    step_of(simulation, Request(timed=False))
    least, time = least_step_ns(simulation) / 1e9, simulate(asked).time
    assert time is not None
    kernels = sum(time.parts[part] for part in ("forward", "backward", "optimizer"))
    assert 0.5 * kernels < least <= time.step_s


def test_where_nothing_waits_the_bound_is_the_step() -> None:
    asked = scenario("ddp", "llama-3.2-1b", {}, {"method": "lora", "global_batch_size": 64, "micro_batch_size": 4})
    simulation = placed_simulation(asked)
    step_of(simulation, Request(timed=False))
    time = simulate(asked).time
    assert time is not None
    assert 0.97 * time.step_s < least_step_ns(simulation) / 1e9 <= time.step_s


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_with_few_microbatches_waits_for_its_other_stages(stages: int) -> None:
    asked = scenario("megatron", LLAMA, {"pp": stages, "tp": 2}, {"micro_batch_size": 2, "global_batch_size": 4})
    simulation = placed_simulation(asked)
    step_of(simulation, Request(timed=False))
    time, least = simulate(asked).time, least_step_ns(simulation) / 1e9
    assert time is not None
    assert time.parts["bubble"] > 0.2 * time.step_s
    assert 0.9 * time.step_s < least <= time.step_s


@pytest.mark.parametrize(("mesh", "least"), [
    ({"tp": 2, "dp_shard": 4, "ep": 4, "etp": 1}, 0.97), ({"pp": 2, "tp": 2, "dp_shard": 2, "ep": 2, "etp": 1}, 0.8)])
def test_where_the_host_decides_repeated_microbatches_take_its_time(mesh: dict[str, int], least: float) -> None:
    asked = scenario("megatron", NANO, mesh, {"method": "lora", "seq_len": 1024, "global_batch_size": 128})
    simulation = placed_simulation(asked)
    step_of(simulation, Request(timed=False))
    time = simulate(asked).time
    assert time is not None
    assert time.parts["host"] > 0.5 * time.step_s
    assert least * time.step_s < least_step_ns(simulation) / 1e9 <= time.step_s


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"{one[0]}-{one[2]}")
def test_what_is_too_large_at_rest_is_out_of_memory(layout: tuple[str, str, dict[str, int], dict[str, Any]]) -> None:
    """The limit is moved from what surely fits to nothing; a layout is left out only where the verdict is oom.

    With offload the bound may be nothing, because some frameworks' bytes at rest are without those on the host.
    """
    seen = set()
    for gib in (120, 60, 30, 20, 15, 12, 10, 8, 6, 4, 3, 2, 1):
        asked = scenario(*layout, limits={"usable_memory": f"{min(gib, 79)} GiB"})
        left_out = is_too_large_at_rest(placed_simulation(asked))
        verdict = simulate(asked, timed=False).verdict
        seen.add((left_out, verdict))
        assert not left_out or verdict == "oom"
    assert (True, "oom") in seen or "offload" in layout[3]
