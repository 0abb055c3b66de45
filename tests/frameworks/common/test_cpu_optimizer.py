"""The time of optimizer states and parameters on the host: copies both ways, and a CPU that updates."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.common.cpu_optimizer import cpu_bytes
from simcore.hardware.topology import load_topology
from simcore.inputs.shipped import data_folder
from simcore.results.report import Report
from simcore.simulate import simulate

H100 = load_topology("dgx-h100")


def ran(framework: str, offload: dict[str, Any], **given: Any) -> Report:
    report = simulate(small.scenario(framework, {"dp_shard": 2}, offload=offload, **given))
    assert report.status == "ok", report.problems
    return report


def copies(report: Report) -> dict[tuple[str, str], int]:
    return {(row.axis, row.phase): row.payload_bytes for row in report.ranks[0].traffic if row.collective == "copy"}


def trained(report: Report) -> int:
    return sum(part.num_trainable_params for part in report.ranks[0].at_rest.values())


def test_operators_go_over_whole_tensors() -> None:
    assert cpu_bytes("adamw", "for_loop", 100, 4) == cpu_bytes("adam", "", 100, 4) == 20 * 400
    assert cpu_bytes("adamw", "fused", 100, 2) == 7 * 200
    assert cpu_bytes("sgd", "", 100, 4) == 11 * 400
    assert cpu_bytes("lion", "for_loop", 100, 4) == 19 * 400
    assert cpu_bytes("lion", "fused", 100, 4) == 5 * 400


# ---- Megatron -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_gradients_go_and_parameters_come_back(fraction: float) -> None:
    report = ran("megatron", {"optimizer": {"space": "host", "fraction": fraction}})
    here = ran("megatron", {})
    away = round(trained(report) // 2 * fraction)
    found = copies(report)
    assert found["to_host", "optimizer"] == pytest.approx(4 * away, rel=1e-3)
    assert found["to_device", "optimizer"] == pytest.approx(2 * away, rel=1e-3)
    assert copies(here) == {}
    assert report.time is not None
    assert here.time is not None
    bandwidth = H100.node.host_bandwidth
    assert bandwidth is not None
    cpu_s = away * (80 + 6) / (bandwidth.si * 0.7 / 2)
    copied = {one.axis: one for one in report.time.communication if one.collective == "copy"}
    for one in copied.values():
        assert one.exposed_s == pytest.approx(one.alone_s)
        assert one.link == "host"
    more = cpu_s + sum(one.alone_s for one in copied.values())
    assert report.time.step_s - here.time.step_s == pytest.approx(more, rel=0.2)
    launched = 2 * H100.efficiency.host.operator.si  # the copies
    assert report.time.parts["host"] - here.time.parts["host"] == pytest.approx(cpu_s + launched, rel=0.1)


# ---- FSDP2 ----------------------------------------------------------------------------------------------------------
EVERY = {"params": "host", "gradients": "host", "optimizer": "host"}


@pytest.mark.parametrize("framework", ["fsdp1", "fsdp2"])
def test_both_ways_of_sharding_copy_and_update(framework: str) -> None:
    given: dict[str, Any] = {"model": "llama-tiny", "microbatches": 1}
    here, away = ran(framework, {}, **given), ran(framework, EVERY, **given)
    size = copies(away)
    assert size["to_host", "backward"] == pytest.approx(4 * trained(away), rel=0.02)
    assert size["to_device", "forward"] == size["to_host", "backward"]
    assert here.time is not None
    assert away.time is not None
    assert away.time.optimizer_s > 3 * here.time.optimizer_s


def test_shards_come_before_they_are_gathered_and_gradients_go_when_they_are_reduced() -> None:
    report = ran("fsdp2", EVERY, microbatches=1)
    size = copies(report)
    rows = {row.axis: row for row in report.ranks[0].traffic if row.collective == "copy"}
    assert size["to_host", "backward"] == 4 * trained(report)
    assert size["to_device", "forward"] >= size["to_host", "backward"]
    assert {row.nvlink_bytes + row.network_bytes for row in rows.values()} == {0}
    assert {row.wire_bytes == row.payload_bytes for row in rows.values()} == {True}


def test_a_step_on_the_cpu_is_time_of_the_host() -> None:
    here, away = ran("fsdp2", {}), ran("fsdp2", EVERY)
    assert here.time is not None
    assert away.time is not None
    assert away.time.optimizer_s > 3 * here.time.optimizer_s
    assert away.time.parts["host"] > here.time.parts["host"]
    assert away.time.step_s > here.time.step_s


def test_a_machine_that_does_not_tell_its_memory_has_no_step_on_the_cpu(tmp_path: Any) -> None:
    text = (data_folder("topologies") / "dgx-h100.yaml").read_text(encoding="utf-8")
    kept = "\n".join(line for line in text.splitlines() if "host_bandwidth" not in line)
    file = tmp_path / "mine.yaml"
    file.write_text(kept.replace("name: dgx-h100", "name: mine"), encoding="utf-8")
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, offload=EVERY, topology=str(file)))
    assert "does not say node.host_bandwidth" in report.problems[0].message
    assert simulate(small.scenario("fsdp2", {"dp_shard": 2}, topology=str(file))).status == "ok"


# ---- activations ----------------------------------------------------------------------------------------------------
def test_inputs_of_replayed_layers_go_and_come_back() -> None:
    given: dict[str, Any] = {"recompute": "full", "microbatches": 2, "seq_len": 4096}
    here, away = ran("fsdp2", {}, **given), ran("fsdp2", {"activations": "host"}, **given)
    graph = small.prepared("fsdp2")[0].graph
    layers = sum(graph.kinds[layer.kind].block is None for layer in graph.layers)
    one = 4096 * graph.architecture.hidden * 2
    assert copies(away) == {("to_host", "forward"): 2 * layers * one, ("to_device", "recompute"): 2 * layers * one}
    assert here.time is not None
    assert away.time is not None
    spent = sum(row.alone_s for row in away.time.communication if row.collective == "copy")
    assert away.time.step_s - here.time.step_s == pytest.approx(spent, rel=0.3)
