"""Memory outside the allocator: sums written down by hand from the readings and from DeepEP's source."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.memory.outside_allocator import deepep_bytes
from simcore.memory.reserved import GATHERED, needed
from simcore.results.report import Report
from simcore.simulate import simulate

MIB = 2**20
PAIR = 32 * 14 * MIB


def simulated(framework: str, mesh: dict[str, int], topology: str = "dgx-h100", **given: Any) -> Report:
    report = simulate(small.scenario(framework, mesh, **given).model_copy(update={"topology": topology}), timed=False)
    assert report.status == "ok", report.problems
    return report


def in_128(num_bytes: int) -> int:
    return (num_bytes + 127) // 128 * 128


def held(report: Report) -> dict[str, int]:
    assert report.ranks[0].peak is not None
    return report.ranks[0].peak.outside


def test_one_gpu_has_its_context_alone() -> None:
    assert set(held(simulated("fsdp2", {}, "h100-1gpu"))) == {"context", "workspace"}


def test_what_is_copied_to_the_host_is_no_communicators() -> None:
    waits: dict[str, Any] = {"model": "llama-tiny", "recompute": "full", "offload": {"activations": "host"}}
    report = simulated("ddp", {}, **waits)
    assert {row.collective for row in report.ranks[0].traffic} == {"copy"}
    assert "nccl" not in held(report)


@pytest.mark.parametrize(("topology", "ranks", "mib"), [
    ("dgx-h100", 2, 342), ("dgx-h100", 8, 392), ("dgx-b200", 4, 392), ("dgx-a100", 2, 544), ("dgx-a100", 4, 688)])
def test_a_communicator_with_rings(topology: str, ranks: int, mib: int) -> None:
    assert held(simulated("fsdp2", {"dp_shard": ranks}, topology))["nccl"] == mib * MIB


def test_every_communicator_counts_and_the_world_too() -> None:
    """Shards of 2 ranks and replicas of 4: no group spans all 8 ranks, and the job still has one that does."""
    assert held(simulated("fsdp2", {"dp_shard": 2, "dp_replicate": 4}))["nccl"] == (342 + 392 + 392) * MIB


def test_sends_connect_every_pair_in_a_node() -> None:
    """Experts on 4 ranks: 3 peers, and a ring for their counts; stages: 1 neighbour of 2, 2 of 4 or more."""
    experts = simulated("megatron", {"dp_shard": 4, "ep": 4, "etp": 1})
    assert held(experts)["nccl"] == 2 * 392 * MIB + 3 * PAIR
    stages = [held(simulated("megatron", {"pp": pp}, model="llama-tiny"))["nccl"] for pp in (2, 4)]
    assert [size % PAIR for size in stages] == [342 * MIB, 392 * MIB]
    assert [size // PAIR for size in stages] == [1, 2]


def test_peers_in_other_nodes_do_not_count() -> None:
    near, far = (held(simulated("megatron", {"pp": 2, "dp_shard": n}, model="llama-tiny"))["nccl"] for n in (4, 8))
    assert near - far == PAIR


def test_deepep_replaces_the_sends_of_experts() -> None:
    options = {"moe_token_dispatcher_type": "flex"}
    sizes = held(simulated("megatron", {"dp_shard": 4, "ep": 4, "etp": 1}, options=options))
    assert sizes["nccl"] == 392 * MIB
    hidden = prepare(small.scenario("megatron"))[0].graph.architecture.hidden
    assert sizes["dispatcher"] == deepep_bytes(hidden, 4)


def test_deepep_inside_a_node() -> None:
    """EP 8, hidden 2,688: 10 channels x 8 x (5 numbers + 256 x (5,376 + 8 + 1,024 + 512 + 512) B), in 128, 32 MiB."""
    assert deepep_bytes(2688, 8) == in_128(10 * 8 * (5 * 4 + 256 * 7432)) + 32 * MIB


def test_deepep_across_nodes_has_a_second_buffer() -> None:
    """EP 16: 7 numbers and 288 tokens over NVLink; 2 nodes x 2 x (18 numbers + 128 x 7,448 B) over RDMA."""
    nvlink, rdma = 10 * 8 * (7 * 4 + 288 * 7432), 10 * 2 * 2 * (18 * 4 + 128 * 7448)
    assert deepep_bytes(2688, 16) == in_128(nvlink) + in_128(rdma) + 32 * MIB


def test_device_is_what_is_needed_and_what_is_held_outside() -> None:
    for rank in simulated("automodel", {"dp_shard": 4, "ep": 2}).ranks:
        assert rank.peak is not None
        need = needed(rank.peak.allocated_bytes, GATHERED).middle
        assert rank.peak.device_bytes == need + sum(rank.peak.outside.values())
        assert rank.peak.reserved_bytes > need, "cache is no need"
        assert set(rank.peak.outside) == {"context", "nccl", "dispatcher", "workspace"}


def test_workspaces_count_once() -> None:
    """Beside tensors where parameters are gathered, among them under Megatron."""
    for name in ("fsdp2", "megatron"):
        (rank,) = simulated(name, {"dp_shard": 2}).ranks
        assert rank.peak is not None
        assert ("workspace" in rank.peak.outside) != ("workspace" in rank.peak.by_category)


def test_each_part_says_how_far_it_can_be_trusted() -> None:
    told = {a.what: a for a in simulated("megatron", {"dp_shard": 4, "ep": 2, "etp": 1}).assumptions}
    assert {"context", "nccl", "te_workspace", "cublas_workspace.forward", "reserved_bytes", "band_bytes"} <= set(told)
    assert told["nccl"].kind == "assumed"
    assert "nccl issue" in told["nccl"].source
    assert told["reserved_bytes"].kind == "calibrated"
