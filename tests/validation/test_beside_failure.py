"""A run that ended out of memory beside the simulated step: sizes, tensors of the size asked for, remarks."""

from __future__ import annotations

from dataclasses import replace

import pytest

import small
from checkout import ROOT
from oom_messages import CASES
from simcore.errors import InputError
from simcore.inputs.loading import load
from simcore.results.report import Peak, Report
from simcore.simulate import simulate
from simcore.validation.beside_failure import POSTINGS, beside_failure
from simcore.validation.out_of_memory.message import OutOfMemory, read_messages
from simcore.validation.out_of_memory.other_texts import Told
from simcore.validation.side_by_side import Beside, SideBySide

MIB, GIB = 2**20, 2**30
NANO_TOKENS, NANO_VOCABULARY, NANO_HIDDEN = 2048, 131072, 2688


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 4}, microbatches=2), detail=True,
                    postings=POSTINGS)


@pytest.fixture(scope="module")
def nano() -> Report:
    (scenario, *_) = load(str(ROOT / "scenarios/nano-ep4/automodel-4gpu.yaml"))
    return simulate(scenario, detail=True, postings=POSTINGS)


def message(**changes: object) -> OutOfMemory:
    usual = OutOfMemory("1.00 GiB", GIB, 0, round(79.11 * GIB), None, 2 * GIB, 70 * GIB, None, GIB // 2, 72 * GIB, None,
                        phase="loss")
    return replace(usual, **changes)  # type: ignore[arg-type]


def compared(report: Report, *messages: OutOfMemory, others: tuple[Told, ...] = (), rank: int | None = None
             ) -> SideBySide:
    return beside_failure("x.log", messages, others, report, rank)


def rows(found: SideBySide) -> dict[str, Beside]:
    return {row.what: row for row in found.quantities}


def peak_of(report: Report) -> Peak:
    (rank,) = report.ranks
    assert rank.peak is not None
    return rank.peak


def test_sizes_stand_beside_those_of_the_phase_that_failed(report: Report) -> None:
    peak, found = peak_of(report), rows(compared(report, message()))
    apart = peak.outside["workspace"]
    assert (found["allocated, and asked for"].measured, found["allocated, and asked for"].simulated) == (
        71 * GIB, peak.by_phase["loss"] + apart)
    blocks = found["blocks that do not fit together"]
    assert (blocks.measured, blocks.simulated) == (
        GIB // 2, peak.device_bytes - peak.allocated_bytes - sum(peak.outside.values()))
    outside = found["outside of torch's allocator"]
    assert (outside.measured, outside.simulated) == (72 * GIB - 70 * GIB - GIB // 2, sum(peak.outside.values()) - apart)
    assert (found["needed, at least"].measured, found["needed, at least"].simulated) == (73 * GIB, peak.device_bytes)
    assert found["capacity"].simulated == report.capacity_bytes


def test_without_a_phase_it_is_the_peak_and_is_said(report: Report) -> None:
    peak, found = peak_of(report), compared(report, message(phase=""))
    assert rows(found)["allocated, and asked for"].simulated == (
        max(peak.allocated_bytes, peak.first_step_bytes or 0) + peak.outside["workspace"])
    assert any("give the text with its traceback" in note for note in found.notes)


def test_backward_includes_what_is_recomputed(report: Report) -> None:
    peak = peak_of(report)
    most = max(peak.by_phase.get("backward", 0), peak.by_phase.get("recompute", 0)) + peak.outside["workspace"]
    assert rows(compared(report, message(phase="backward")))["allocated, and asked for"].simulated == most


def test_the_tensor_that_asked_is_found_by_its_size(nano: Report) -> None:
    found = compared(nano, message())
    first = found.asked[0]
    assert first.num_bytes == NANO_TOKENS * NANO_VOCABULARY * 4 == GIB
    assert (first.owner.partition(" ")[0], first.category) == ("log_softmax", "activation")
    assert (first.in_phase, first.times) == (2, 2)
    assert first.shape == "2,048 tokens x 131,072 x 4 B"
    assert {row.owner.partition(" ")[0] for row in found.asked if row.in_phase} == {"to_fp32", "log_softmax"}
    assert compared(nano, message(phase="backward")).asked[0].owner.startswith("grad_log_softmax")


def test_a_parameter_has_its_shape(nano: Report) -> None:
    size = NANO_VOCABULARY * NANO_HIDDEN * 2
    found = compared(nano, message(asked=f"{size / MIB:.2f} MiB", asked_bytes=size, phase="forward"))
    assert {row.owner for row in found.asked} >= {"unsharded_param of embedding", "all_gather_output of embedding"}
    assert {row.shape for row in found.asked} == {
        f"model.embed_tokens.weight: {NANO_VOCABULARY:,} x {NANO_HIDDEN:,} x 2 B"}


@pytest.mark.parametrize(("changes", "told"), [
    ({"asked": "1.23 GiB", "asked_bytes": round(1.23 * GIB)}, "no simulated tensor has the size"),
    ({"asked": "2.00 MiB", "asked_bytes": 2 * MIB}, "shared by small tensors"),
    ({"asked": "", "asked_bytes": None}, "damaged or uninitialised size"),
    ({"unused_bytes": 3 * GIB}, "expandable_segments: true"),
    ({"others_bytes": 9 * GIB}, "other processes hold 9.00 GiB"),
    ({"allowed_bytes": 10 * GIB}, "limited itself to 10.00 GiB"),
    ({"capacity_bytes": 40 * GIB}, "another topology was run"),
    ({}, "simulated: fits"), ({}, "more than is simulated in loss")])
def test_remarks(changes: dict[str, object], told: str, report: Report) -> None:
    assert any(told in note for note in compared(report, message(**changes)).notes)


def test_a_run_that_holds_what_is_simulated_gets_no_remark_about_it(report: Report) -> None:
    peak = peak_of(report)
    held = peak.by_phase["loss"] + peak.outside["workspace"] - GIB
    found = compared(report, message(allocated_bytes=held, in_use_bytes=held + GIB))
    assert [note for note in found.notes if "more than" in note] == []
    assert rows(found)["allocated, and asked for"].difference == 0


def test_of_several_ranks_the_first_is_compared_unless_one_is_asked_for(report: Report) -> None:
    messages = (message(rank=2), message(rank=1, allocated_bytes=60 * GIB))
    found = compared(report, *messages)
    assert found.failure is not None
    assert (found.failure.rank, found.failure.num_failed) == (2, 2)
    assert any("2 messages (ranks 1, 2)" in note for note in found.notes)
    assert rows(compared(report, *messages, rank=1))["allocated, and asked for"].measured == 61 * GIB
    with pytest.raises(InputError, match="has no rank 9"):
        compared(report, message(rank=9))


def test_loading_stands_beside_the_simulated_loading(report: Report) -> None:
    assert report.host is not None
    load = next(phase for phase in report.host.phases if phase.phase == "load")
    found = rows(compared(report, message(phase="load")))
    assert found["needed, at least"].simulated == load.device_bytes
    assert found["allocated, and asked for"].simulated is None


def test_generation_stands_beside_that_phase_of_reinforcement_learning() -> None:
    (scenario,) = load(str(ROOT / "scenarios/nano-grpo/full-separate.yaml"))
    simulated = simulate(scenario)
    (phase,) = [phase for phase in simulated.phases if phase.phase == "generation"]
    row = rows(compared(simulated, message(phase="generation")))["needed, at least"]
    assert (row.simulated, row.told) == (phase.device_bytes, "simulated: in phase generation")


def test_other_texts_become_remarks(report: Report) -> None:
    told = Told("NCCL", "NCCL found no memory", "NCCL WARN ..", 3)
    found = compared(report, others=(told,))
    assert found.notes[0] == "NCCL found no memory (3 lines: NCCL WARN ..)"
    assert found.notes[1].startswith("simulated: fits, ")
    assert [row.what for row in found.quantities] == ["outside of torch's allocator"]
    assert compared(report, message(), others=(told,)).notes[-1] == "NCCL found no memory (3 lines: NCCL WARN ..)"


@pytest.mark.parametrize("case", CASES, ids=[case.source.partition("github.com/")[2] for case in CASES])
def test_every_message_of_a_public_issue_is_compared(case: object, report: Report) -> None:
    found = beside_failure("x", read_messages(case.text), (), report.model_copy(update={"ranks": tuple(  # type: ignore[attr-defined]
        rank.model_copy(update={"ranks": ("0-99",)}) for rank in report.ranks)}), None)
    assert {"asked for", "allocated, and asked for", "needed, at least", "capacity"} <= set(rows(found))
    assert SideBySide.model_validate_json(found.model_dump_json()) == found
