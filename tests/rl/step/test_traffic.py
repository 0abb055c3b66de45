"""Traffic of a step with phases: what each phase sends, by hand, and sums that add up."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from rl.step.test_forward import parts
from rl.test_workload import DPO, GRPO, report, seconds
from simcore.hardware.topology import load_topology
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.phases import PHASES
from simcore.results.report import RankReport, Report, TrafficRow
from simcore.rl.step.refit import gathered
from simcore.simulate import simulate
from simcore.timing.collective import collective_ns

APART = GRPO["generation"] | {"colocated": False, "engines": 2, "tp": 2}
SHORT = {"seq_len": 256, "global_batch_size": 16}
LLAMA: dict[str, Any] = {"model": "llama-3.2-1b", "framework": "automodel"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": (GRPO, {}), "tp": (GRPO, LLAMA | {"generation": GRPO["generation"] | {"tp": 4}}),
    "apart": (GRPO, {"generation": APART}), "dpo": (DPO, {}), "llama": (GRPO, LLAMA),
    "megatron": (GRPO, {"framework": "megatron", "mesh": {"dp_shard": 4, "tp": 2}, "training": SHORT}),
    "nodes": (GRPO, {"mesh": {"dp_shard": 16}, "rl": GRPO["rl"] | {"prompts": 8}})}


def made(case: str) -> Report:
    base, changed = CASES[case]
    found = report(base, **changed)
    assert found.status == "ok", found.problems
    return found


def of_phase(rank: RankReport, phase: str) -> list[TrafficRow]:
    return [row for row in rank.traffic if row.phase == phase]


@pytest.mark.parametrize("case", CASES)
def test_phases_add_up_to_the_step(case: str) -> None:
    """Every byte that leaves the rank does so in one phase, over one link."""
    found = made(case)
    for rank in found.ranks:
        sent: Counter[str] = Counter()
        for phase in rank.phases:
            sent.update(phase.sent_bytes)
            assert sum(phase.parts.values()) == pytest.approx(phase.seconds)
        assert sum(sent.values()) == sum(row.wire_bytes for row in rank.traffic) > 0
        assert sent["nvlink"] == sum(row.nvlink_bytes for row in rank.traffic)
        assert sent["network"] == sum(row.network_bytes for row in rank.traffic)
        assert (sent["network"] > 0) == (case in ("apart", "nodes"))  # 12 and 16 ranks on nodes of 8
        training = {"build", "forward", "backward", "recompute", "optimizer"}
        assert {row.phase for row in rank.traffic} - set(PHASES) <= training


def test_training_sends_what_its_steps_send() -> None:
    """32 sequences in batches of 16: two steps of the optimizer."""
    text = json.dumps({key: value for key, value in GRPO.items() if key not in ("workload", "rl", "generation")})
    alone = simulate(parse_scenario(parse_document(text, "t.json"))).ranks[0]
    training = [row for row in made("grpo").ranks[0].traffic if row.phase not in PHASES]
    twice = [row.model_copy(update={name: 2 * getattr(row, name) for name in (
        "calls", "payload_bytes", "wire_bytes", "nvlink_bytes", "network_bytes")}) for row in alone.traffic]
    assert training == twice
    assert len(training) > 1


def test_a_forward_pass_gathers_what_training_gathers_forward() -> None:
    """FSDP2 gathers each layer once in a pass; 32 sequences on 8 ranks, one at a time, are 4 passes."""
    found = made("grpo").ranks[0]
    forward = [row for row in found.traffic if row.phase == "forward" and row.collective == "all_gather"]
    for phase in ("logprob", "reference"):
        rows = [row for row in of_phase(found, phase) if row.collective == "all_gather"]
        # 2 steps of 2 microbatches train forward, so 4 passes too; the root stays gathered in some of them
        sizes = [sum(row.payload_bytes for row in found_rows) for found_rows in (rows, forward)]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.3)
        assert {row.dtype for row in rows} == {row.dtype for row in forward}
    assert of_phase(found, "logprob")[0].wire_bytes > 0
    without = report(rl=GRPO["rl"] | {"reference": "none"}).ranks[0]
    assert not of_phase(without, "reference")


def test_a_refit_gathers_every_parameter_once() -> None:
    simulation = parts(precision={"params": "fp32"})
    calls = gathered(simulation.plans[:1], simulation.routes).calls
    count = simulation.job.graph.count()
    assert sum(call.num_calls * call.num_bytes for call in calls) == 4 * count
    found = made("grpo").ranks[0]
    (row,) = [row for row in of_phase(found, "refit") if row.collective == "all_gather"]
    assert (row.payload_bytes, row.dtype, row.group_size) == (4 * count, "fp32", 8)
    assert row.wire_bytes == pytest.approx(4 * count * 7 / 8, abs=row.calls)
    copies = {row.axis: row for row in of_phase(found, "refit") if row.collective == "copy"}
    assert set(copies) == {"to_host", "to_device"}


def test_an_engine_on_one_rank_sends_nothing() -> None:
    assert {row.collective for row in of_phase(made("grpo").ranks[0], "generation")} == {"copy"}


def test_an_engine_reduces_every_blocks_output() -> None:
    """Llama with 16 layers on 4 ranks: 2 all-reduces a layer and that of the embedding; logits of each new token."""
    generation = GRPO["generation"] | {"tp": 4}
    rl = GRPO["rl"] | {"prompt_tokens": 56}
    found = report(**LLAMA, generation=generation, rl=rl).ranks[0]
    rows = {row.collective: row for row in of_phase(found, "generation") if row.collective != "copy"}
    sequences = 4 * 8 // 2  # two engines on 8 ranks
    assert rows["all_reduce"].payload_bytes == 33 * sequences * 255 * 2048 * 2
    assert rows["all_reduce"].calls == 33 * (1 + 199)  # one pass has all prompts
    assert rows["all_gather"].payload_bytes == sequences * 200 * 128256 * 2
    assert rows["all_reduce"].axis == rows["all_gather"].axis == "engine_tp"
    assert rows["all_reduce"].wire_bytes == pytest.approx(rows["all_reduce"].payload_bytes * 2 * 3 / 4, rel=1e-6)
    few = report(**LLAMA, generation=generation | {"max_num_batched_tokens": 300}, rl=rl).ranks[0]
    chunks = next(row for row in of_phase(few, "generation") if row.collective == "all_reduce")
    assert chunks.payload_bytes == rows["all_reduce"].payload_bytes
    assert chunks.calls == 33 * (3 + 199)  # 16 prompts of 56 tokens, 300 at a time


def test_weights_are_broadcast_to_engines_elsewhere() -> None:
    found = made("apart")
    train, engine = found.ranks[0], found.ranks[-1]
    for rank in (train, engine):
        (row,) = [row for row in of_phase(rank, "refit") if row.collective == "broadcast"]
        assert (row.axis, row.group_size) == ("all_ranks", 12)
        assert row.payload_bytes == 2 * parts().job.graph.count()
    assert {row.phase for row in engine.traffic} == {"refit", "generation"}
    assert {row.phase for row in train.traffic} >= {"refit", "logprob", "forward"}
    assert not of_phase(train, "generation")
    own = {phase.phase: phase.parts for phase in engine.phases}["refit"]
    shared = {phase.phase: phase.parts for phase in made("grpo").phases}["refit"]
    assert found.peak_rank is engine
    link = load_topology("dgx-h100").link(12, 1, 12)
    size = 2 * parts().job.graph.count()  # less than a buffer: one broadcast
    took = shared["gathers"] + shared["packing"] + collective_ns("broadcast", size, 12, link) / 1e9
    assert own == pytest.approx({"the ranks that train": took}, rel=1e-6)


def test_a_pair_passes_the_reference_and_trains() -> None:
    found = made("dpo").ranks[0]
    assert {row.phase for row in found.traffic} == {"reference", "forward", "backward"}
    copies = [row for row in of_phase(found, "reference") if row.collective == "copy"]
    assert {row.axis: (row.calls, row.dtype) for row in copies} == {"to_host": (1, "mixed"), "to_device": (2, "mixed")}
    assert 2 * copies[1].wire_bytes == copies[0].wire_bytes or 2 * copies[0].wire_bytes == copies[1].wire_bytes


@pytest.mark.parametrize("tokens", [1, 2])
def test_an_engine_sends_only_for_tokens_that_it_generates(tokens: int) -> None:
    """A sequence without a prompt begins with a token; one of a single token needs no pass."""
    found = report(GRPO, model="llama-tiny", framework="automodel", training={"seq_len": tokens},
                   mesh={"dp_shard": 4}, rl={"prompts": 4, "generations": 1},
                   generation={"tp": 2, "colocated": False, "engines": 1})
    assert found.status == "ok", found.problems
    assert all(row.calls > 0 < row.payload_bytes for rank in found.ranks for row in rank.traffic)
    assert any(of_phase(rank, "generation") for rank in found.ranks) == (tokens > 1)


def test_an_engines_collectives_take_the_time_that_its_traffic_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """All-reduces of 256 tokens but the first: two a layer, one of embedded tokens; one gathering of logits."""
    whole = made("tp")
    calls = [row for row in of_phase(whole.ranks[0], "generation") if row.axis == "engine_tp"]
    link = load_topology("dgx-h100").link(4, 1, 8)
    asked_ns = sum(row.calls * collective_ns(row.collective, row.payload_bytes // row.calls, 4, link) for row in calls)
    assert sum(row.calls for row in calls) > 255 * 16
    monkeypatch.setattr("simcore.rl.generating.engine_ns", lambda *_: 0)
    took, reads = (seconds(found)["generation"] for found in (whole, made("tp")))
    assert took - reads == pytest.approx(asked_ns / 1e9, rel=0.01)
    assert took > 1.1 * reads  # 16 layers of a small model, on four ranks
