"""A log beside a simulated step: which quantity stands beside which, and what follows from it."""

from __future__ import annotations

import pytest

import small
from checkout import ROOT
from simcore.errors import InputError
from simcore.inputs.loading import load
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.validation.beside_log import beside_log
from simcore.validation.logs.reading import GIB, Log, Reading
from simcore.validation.side_by_side import Beside, SideBySide
from training_logs import LOGS, read

SEQ, BATCH, GPUS = 64, 8, 4


@pytest.fixture(scope="module")
def report() -> Report:
    return simulate(small.scenario("fsdp2", {"dp_shard": 4}, microbatches=2))


def log(*readings: Reading, batch: int | None = None) -> Log:
    return Log("Megatron-LM", readings, batch)


def rows(found: SideBySide) -> dict[str, Beside]:
    return {row.what: row for row in found.quantities}


def test_a_log_beside_the_rank_that_read_most() -> None:
    report = simulate(small.scenario("automodel", {"dp_shard": 2, "pp": 2}, microbatches=4))
    low, high = (Reading("allocated_peak", value, rank, 2) for value, rank in ((100, 0), (300, 3)))
    comparison = beside_log("x", log(low, high), report, None)
    last = next(rank for rank in report.ranks if rank.has_rank(3))
    assert last.peak is not None
    assert comparison.ranks == last.ranks
    row = rows(comparison)["peak allocated"]
    assert (row.measured, row.told) == (300, "rank 3, after step 2")
    assert row.simulated == max(last.peak.allocated_bytes, last.peak.first_step_bytes or 0)
    assert rows(beside_log("x", log(low, high), report, 0))["peak allocated"].measured == 100


def test_the_first_steps_peak_and_what_is_left(report: Report) -> None:
    (rank,) = report.ranks
    assert rank.peak is not None
    found = rows(beside_log("x", log(Reading("allocated_peak_first", 5, 0, 1), Reading("allocated_end", 6, 0, 1),
                                     Reading("reserved_peak", 7, 0, 1)), report, None))
    assert found["peak allocated, first step"].simulated == rank.peak.first_step_bytes
    assert found["allocated after a step"].simulated == rank.end_bytes
    assert found["reserved"].simulated == rank.peak.reserved_bytes


def test_times_and_what_follows_from_them(report: Report) -> None:
    time = report.time
    assert time is not None
    of_steps = rows(beside_log("x", log(Reading("step_s", 0.5, num_lines=3), batch=BATCH), report, None))
    assert of_steps["step"].simulated == time.step_s
    assert of_steps["step"].told == "median of 3 lines, the first left out"
    assert of_steps["tokens a second and GPU"].measured == pytest.approx(SEQ * BATCH / 0.5 / GPUS)
    of_rates = rows(beside_log("x", log(Reading("tokens_per_s_per_gpu", 256.0), Reading("mfu", 0.4)), report, None))
    assert of_rates["step"].measured == pytest.approx(SEQ * BATCH / 256 / GPUS)
    assert of_rates["MFU"].simulated == time.mfu


def test_another_batch_is_said_and_nothing_follows_from_it(report: Report) -> None:
    comparison = beside_log("x", log(Reading("step_s", 0.5), batch=BATCH * 2), report, None)
    assert comparison.differs == (f"global batch {BATCH * 2}, the job has {BATCH}",)
    assert "tokens a second and GPU" not in rows(comparison)


def test_a_rank_that_did_not_print() -> None:
    report = simulate(small.scenario("automodel", {"dp_shard": 2, "pp": 2}, microbatches=4))
    with pytest.raises(InputError, match="no reading of ranks 2-3, only of 0"):
        beside_log("x", log(Reading("allocated_peak", 5, 0, 2)), report, 3)


def test_a_rank_that_nobody_has(report: Report) -> None:
    with pytest.raises(InputError, match="has no rank 7"):
        beside_log("x", log(Reading("allocated_peak", 5, 7, 2)), report, None)


def test_rates_of_all_gpus(report: Report) -> None:
    time = report.time
    assert time is not None
    found = rows(beside_log("x", log(Reading("tokens_per_s", 1024.0), Reading("samples_per_s", 16.0)), report, None))
    assert found["tokens a second, all GPUs"].simulated == pytest.approx(time.tokens_per_s_per_gpu * GPUS)
    assert found["sequences a second, all GPUs"].simulated == pytest.approx(BATCH / time.step_s)
    assert found["step"].measured == pytest.approx(SEQ * BATCH / 1024)
    assert rows(beside_log("x", log(Reading("samples_per_s", 16.0)), report, None))["step"].measured == BATCH / 16


def test_parts_of_the_step_and_what_stands_beside_nothing(report: Report) -> None:
    time = report.time
    assert time is not None
    found = rows(beside_log("x", log(*(Reading(of, 1.0) for of in (
        "forward_s", "backward_s", "optimizer_s", "allocated_start", "trained_tokens_per_s_per_gpu"))), report, None))
    assert [found[what].simulated for what in ("forward", "backward", "optimizer's step")] == [
        time.forward_s, time.backward_s, time.optimizer_s]
    assert found["allocated before the first step"].simulated is None
    assert found["tokens with a loss a second and GPU"].simulated is None


@pytest.mark.parametrize("name", LOGS)
def test_every_log_has_something_beside_it(name: str, report: Report) -> None:
    comparison = beside_log("x", read(LOGS[name]), report, None)
    assert any(row.simulated is not None for row in comparison.quantities)
    assert comparison.source == f"log of {name}"


def test_phases_of_reinforcement_learning() -> None:
    (scenario,) = load(str(ROOT / "scenarios/nano-grpo/full-separate.yaml"))
    simulated = simulate(scenario)
    seconds = {phase.phase: phase.seconds for phase in simulated.phases}
    assert simulated.time is not None
    comparison = beside_log("x", read(LOGS["verl"]), simulated, None)
    found = rows(comparison)
    assert found["step"].simulated == simulated.time.step_s
    assert found["phase training"].simulated == seconds["training"]
    assert found["phases logprob and reference"].simulated == seconds["logprob"] + seconds["reference"]
    assert (found["peak allocated"].measured, found["peak allocated"].simulated) == (41.25 * GIB, None)
    assert "not compared" in comparison.notes[0]
    assert rows(beside_log("x", read(LOGS["NeMo RL"]), simulated, None))["phase refit"].simulated == seconds["refit"]


def test_a_log_far_from_the_job_is_most_likely_of_another(report: Report) -> None:
    assert report.time is not None
    for times, batch, is_told in ((10, None, True), (1.2, None, False), (10, BATCH, False)):
        found = beside_log("x", log(Reading("step_s", times * report.time.step_s, None, 2), batch=batch), report, None)
        assert any("most likely it is of another job" in note for note in found.notes) is is_told, (times, batch)
