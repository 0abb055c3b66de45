"""Backward in two halves: together they do what one whole pass does, and nothing that was saved goes with the first."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.operators.torchtitan import implementation as torchtitan
from simcore.placement.job import Job
from simcore.placement.plan import Plan, place
from simcore.program.record_layers import Workload, keys_of, run_of
from simcore.recording.layer import RecordedLayer
from simcore.recording.tape import HIDDEN, Kernel, Op, Section
from simcore.results.report import Report
from simcore.simulate import simulate

DEEP = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}

WIDE = {"config": "llama-3-8b", "overrides": {"num_hidden_layers": 14}}


def _asked(schedule: str, chunks: int, **given: Any) -> Any:
    asked = small.scenario("fsdp2", given.pop("mesh", {"pp": 2, "dp_shard": 2}), model=given.pop("model", DEEP),
                           microbatches=given.pop("microbatches", 8),
                           pipeline={"schedule": schedule, "virtual_stages": chunks}, **given)
    return asked.model_copy(update={"implementation": "torchtitan"})


def _plan() -> tuple[Job, Plan]:
    job, table = prepare(_asked("zb_h1", 1))
    return job, place(job.graph, job.mesh, table, 2)


def _layer(*, split: bool) -> RecordedLayer:
    """A block of the last stage."""
    job, plan = _plan()
    kind, first, below, how, _, stem, moved, given = keys_of(plan)[plan.layers[1]]
    run = run_of(plan, (kind, first, below, how, split, stem, moved, given), Workload(1, 64, 0))
    slots: dict[tuple[str, str], int] = {}
    return torchtitan.record(job.graph.kinds[kind], run, slots, {})


def _flops(section: Section, kernel: Kernel) -> int:
    return sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == kernel)


def _change(section: Section) -> int:
    return sum(row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE))


def test_products_are_the_same() -> None:
    whole, split = _layer(split=False), _layer(split=True)
    for kernel in (Kernel.GEMM, Kernel.ATTENTION):
        assert _flops(whole.backward, kernel) == _flops(split.backward, kernel) + _flops(split.weight, kernel) > 0
    assert 2 * _flops(split.weight, Kernel.GEMM) == _flops(whole.backward, Kernel.GEMM)
    assert _flops(split.weight, Kernel.ATTENTION) == 0


def test_both_leave_the_same() -> None:
    whole, split = _layer(split=False), _layer(split=True)
    parts = (split.backward, split.weight, split.release)
    assert sum(map(_change, parts)) == _change(whole.backward)
    assert split.grads
    assert {(param, size) for param, _, size in split.grads} == {(param, size) for param, _, size in whole.grads}


def test_the_first_frees_nothing_that_was_saved() -> None:
    """It frees only its own tensors, and the incoming gradient, which the last linear keeps too."""
    split = _layer(split=True)
    made: dict[tuple[int, int], int] = {}
    for row in split.backward.rows:
        if row[0] in (Op.ALLOC, Op.FREE):
            key = (row[1], row[2])
            made[key] = made.get(key, 0) + row[3]
    assert all(size >= 0 for size in made.values())
    assert any(row[0] == Op.FREE and row[2] == HIDDEN for row in split.weight.rows)


def test_gradients_come_in_the_order_of_parameters() -> None:
    _, plan = _plan()
    _, split = _layer(split=False), _layer(split=True)
    names = [p.spec.name for p in plan.of_layer(plan.layers[1]) if not p.spec.is_buffer]
    assert [param.name for param, _, _ in split.grads] == names


def _highest(report: Report) -> int:
    return max(rank.peak.allocated_bytes for rank in report.ranks if rank.peak)


@pytest.mark.parametrize(("schedule", "chunks"), [("zb_h1", 1), ("interleaved_zb", 2), ("zbv", 2)])
def test_a_step_is_simulated(schedule: str, chunks: int) -> None:
    """Faster than the schedule that it comes from, where the host is not what a step waits for; with more memory."""
    given: dict[str, Any] = {"mesh": {"pp": 4, "dp_shard": 2}, "model": WIDE, "seq_len": 4096}
    split, plain = (simulate(_asked(name, chunks, **given)) for name in (schedule, "1f1b"))
    assert split.status == plain.status == "ok", split.problems
    assert split.time is not None
    assert plain.time is not None
    assert split.time.step_s < 0.95 * plain.time.step_s
    assert _highest(split) > _highest(plain)


@pytest.mark.parametrize(("schedule", "chunks", "given", "told"), [
    ("zbv", 1, {}, "exactly 2 stages per rank"), ("zb_h1", 2, {}, "zb_h1"), ("interleaved_zb", 1, {}, "zb_h1"),
    ("zb_h1", 1, {"recompute": "full"}, "replayed"), ("zb_h1", 1, {"mesh": {"pp": 1, "dp_shard": 2}}, "stages"),
    ("zb_h1", 1, {"options": {"compile": True}}, "torch.compile"),
    ("zb_h1", 1, {"mesh": {"pp": 2, "dp_shard": 2, "tp": 2}}, "two halves"),
    ("interleaved_zb", 2, {"microbatches": 7}, "multiple of the number of rounds")])
def test_what_is_refused(schedule: str, chunks: int, given: dict[str, Any], told: str) -> None:
    report = simulate(_asked(schedule, chunks, **given))
    assert report.status in ("illegal", "error")
    assert told in report.problems[0].message
