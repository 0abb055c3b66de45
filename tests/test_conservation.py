"""Conservation: shards, states and messages of all ranks add up to the model's, in every layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

import small
from layouts import Layout, layouts
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.placement.layout import Flat
from simcore.placement.plan import place as place_rank
from simcore.program.outline import Phase
from simcore.program.tile import AMOUNT, OP, SLOT, STREAM
from simcore.recording.tape import Op, Stream
from simcore.results.report import Report
from simcore.simulate import place, simulate

RARELY = settings(max_examples=25, deadline=None, derandomize=True)


def _ok(report: Report) -> Report:
    assert report.status == "ok", report.problems
    return report


@RARELY
@given(layouts())
def test_every_element_lies_somewhere_and_as_often_as_it_is_copied(placements: Layout) -> None:
    name, mesh, options = placements
    job, table = prepare(small.scenario(name, mesh, options=options))
    plans = [place_rank(job.graph, job.mesh, table, rank) for rank in range(job.mesh.size)]
    for layer in job.graph.layers:
        for number, spec in enumerate(job.graph.tensors[layer.kind]):
            cut = math.prod(job.mesh.axis(axis).size for axis, _ in table.policy(spec).at_rest.placements)
            held = sum(plan.of_layer(layer.index)[number].local for plan in plans if layer.index in plan.layers)
            assert held * cut == spec.numel * spec.copies * job.mesh.stage_size, spec.name


@RARELY
@given(layouts(frameworks=("fsdp2", "automodel")))
def test_a_report_counts_dense_parameters_once_in_every_replica(placements: Layout) -> None:
    name, mesh, options = placements
    asked = small.scenario(name, mesh, options=options)
    graph = prepare(asked)[0].graph
    dense = [c for c in small.components(graph) if c != "routed_experts"]
    report = _ok(place(asked))
    held = sum(r.num_ranks * r.at_rest[c].num_params for r in report.ranks for c in dense if c in r.at_rest)
    assert held == mesh.get("dp_replicate", 1) * sum(graph.count(c) for c in dense)


@RARELY
@given(layouts(frameworks=("megatron",)))
def test_optimizer_states_of_megatron_add_up_exactly(placements: Layout) -> None:
    """fp32 master and two fp32 moments of every element, once in every data-parallel group."""
    _, mesh, options = placements
    asked = small.scenario("megatron", mesh, options=options)
    job, table = prepare(asked)
    want = 0
    for rank in range(job.mesh.size):
        plan = place_rank(job.graph, job.mesh, table, rank)
        for layer in plan.layers:
            for placed in plan.of_layer(layer):
                if placed.trainable:
                    _, layout = placed.policy.optimizer_states[0]
                    axis = next(axis for axis, cut in layout.placements if isinstance(cut, Flat))
                    want += 12 * 5040 * placed.local // job.mesh.axis(axis).size
    held = sum(_exact_optimizer_bytes(asked, rank) for rank in range(job.mesh.size))
    assert held * 5040 == want


def _exact_optimizer_bytes(asked: Scenario, rank: int) -> int:
    report = _ok(place(asked, rank=rank))
    return sum(c.optimizer_bytes for c in report.ranks[0].at_rest.values())


@RARELY
@given(layouts(frameworks=("fsdp2",)))
def test_forward_gathers_whole_padded_parameters(placements: Layout) -> None:
    """bf16 is gathered: ceil(rows / ranks) rows from each rank, in each of two microbatches."""
    name, mesh, options = placements
    asked = small.scenario(name, mesh, options=options, microbatches=2)
    job, _ = prepare(asked)
    gathered = {"dp_shard_cp": 0, "expert_dp": 0}
    for layer in job.graph.layers:
        for spec in job.graph.tensors[layer.kind]:
            routed = spec.component == "routed_experts" and job.mesh.ep > 1
            if spec.is_owned and not (routed and options["experts"] == "ignored"):
                axis, rows = ("expert_dp", spec.shape[0] // job.mesh.ep) if routed else ("dp_shard_cp", spec.shape[0])
                size = job.mesh.axis(axis).size
                gathered[axis] += 2 * -(-rows // size) * size * (spec.numel // spec.shape[0])
    rank = _ok(simulate(asked, timed=False)).ranks[0]
    found = {axis: sum(t.payload_bytes for t in rank.traffic
                       if (t.collective, t.axis, t.phase) == ("all_gather", axis, "forward")) for axis in gathered}
    assert found == {axis: 2 * size if job.mesh.axis(axis).size > 1 else 0 for axis, size in gathered.items()}
    for row in rank.traffic:
        if row.collective in ("all_gather", "reduce_scatter", "all_to_all"):  # n - 1 of n parts come from others
            assert abs(row.wire_bytes * row.group_size - row.payload_bytes * (row.group_size - 1)) <= (
                row.calls * row.group_size)


@RARELY
@given(layouts(most=24))
def test_links_carry_what_leaves_a_rank_and_members_of_a_group_agree(placements: Layout) -> None:
    """All ranks of a group tell the same calls and bytes, so what one of them sends the others receive."""
    name, mesh, options = placements
    asked = small.scenario(name, mesh, options=options)
    job, _ = prepare(asked)
    told: dict[object, set[object]] = {}
    for rank in _ok(simulate(asked, timed=False, fold=False)).ranks:
        number = int(rank.ranks[0])
        for row in rank.traffic:
            assert min(row.nvlink_bytes, row.network_bytes) >= 0
            assert row.nvlink_bytes + row.network_bytes == row.wire_bytes
            assert row.network_bytes == 0 or job.mesh.size > 8
            if row.collective != "send_recv":  # of a line of stages those at the ends send half
                call = (row.axis, job.mesh.group(number, row.axis), row.collective, row.phase, row.dtype)
                told.setdefault(call, set()).add((row.calls, row.payload_bytes, row.nvlink_bytes, row.network_bytes))
    assert all(len(rows) == 1 for rows in told.values()), told


@RARELY
@given(layouts(frameworks=("automodel", "megatron")))
def test_stages_receive_what_stages_send(placements: Layout) -> None:
    name, mesh, options = placements
    asked = small.scenario(name, mesh, options=options, microbatches=5)
    sent, received = 0, 0
    for stage in range(mesh["pp"]):
        program = small.program_of(name, mesh, options=options, microbatches=5,
                                   rank=stage * prepare(asked)[0].mesh.stage_size)
        rows = program.columns[program.columns[:, OP] == Op.COLLECTIVE]
        sent += int(rows[rows[:, STREAM] == Stream.SEND, AMOUNT].sum())
        received += int(rows[rows[:, STREAM] == Stream.RECEIVE, AMOUNT].sum())
    assert sent == received
    assert (sent > 0) == (mesh["pp"] > 1)


@pytest.mark.parametrize("name", small.FRAMEWORKS)
@pytest.mark.parametrize("model", [small.TINY, "llama-tiny"])
@pytest.mark.parametrize("ep", [1, 2])
def test_recompute_never_keeps_more(name: str, model: str, ep: int) -> None:
    kept = {}
    for recompute in ("none", "full"):
        program = small.program_of(name, {"dp_shard": 4, "ep": ep if model == small.TINY else 1}, model=model,
                                   recompute=recompute)
        activations = [number for (_, category), number in program.tables.slots.items() if category == "activation"]
        columns = program.columns[:int(np.argmax(program.phase == Phase.BACKWARD))]
        posted = (columns[:, OP] <= Op.FREE) & np.isin(columns[:, SLOT], activations)
        kept[recompute] = int(columns[posted, AMOUNT].sum())
    assert 0 < kept["full"] < kept["none"]


@pytest.mark.parametrize(("mesh", "chunks"), [({"pp": 2, "dp_shard": 2}, 2), ({"pp": 4, "tp": 2}, 3), ({"pp": 3}, 4)])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_virtual_stages_move_parameters_and_lose_none(mesh: dict[str, int], chunks: int, method: str) -> None:
    """Parameters of all ranks, by component, are those of plain stages; so is the work."""
    model = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 24}}
    held: list[dict[str, int]] = []
    flops = []
    for virtual in (1, chunks):
        report = _ok(simulate(small.scenario("megatron", mesh, model=model, method=method, microbatches=24,
                                             pipeline={"virtual_stages": virtual})))
        names = sorted({name for rank in report.ranks for name in rank.at_rest})
        held.append({name: sum(rank.num_ranks * rank.at_rest[name].num_params for rank in report.ranks
                               if name in rank.at_rest) for name in names})
        assert report.time is not None
        flops.append(report.time.model_tflops_per_gpu * report.time.step_s)
    assert held[0] == held[1]
    assert flops[0] == pytest.approx(flops[1], rel=1e-12)
