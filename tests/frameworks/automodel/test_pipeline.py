"""Pipeline stages of Automodel: what PyTorch's stages keep, the pool of buffers, losses that stages do not serve."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet
from simcore.frameworks.automodel.policies import NEMO_RL
from simcore.program.outline import Phase
from simcore.recording.tape import Kernel, Op
from simcore.results.report import Report
from simcore.simulate import simulate

LLAMA: dict[str, Any] = {"model": {"config": "llama-tiny", "overrides": {"tie_word_embeddings": False,
                                                                        "num_hidden_layers": 4}}}
PP: dict[str, int] = {"pp": 2, "dp_shard": 2}
POOL = "pp_recv_buffer_pool"


def _ran(**given: Any) -> Report:
    return simulate(small.scenario("automodel", PP, **LLAMA, **given))


def _peaks(**given: Any) -> list[int]:
    ranks = _ran(**given).ranks
    return [rank.peak.allocated_bytes for rank in sorted(ranks, key=lambda r: r.stage) if rank.peak is not None]


def test_a_microbatch_more_is_a_buffer_more_and_logits_kept() -> None:
    """Between steps; the last stage joins the logits when the step ends, which is below its peak here."""
    hidden, logits = 64 * 256 * 2, 64 * 1000 * 2
    first, last = ([b - a for a, b in zip(_peaks(microbatches=6), _peaks(microbatches=7), strict=True)])
    assert first == hidden
    assert last == hidden + logits


def test_a_pool_holds_as_many_buffers_however_many_microbatches() -> None:
    pooled = [_peaks(microbatches=count, options={POOL: True})[0] for count in (16, 32)]
    assert pooled[0] == pooled[1]
    assert pooled[0] + (32 - 4) * 64 * 256 * 2 == _peaks(microbatches=32)[0], "two in flight and two to spare"
    less = _peaks(microbatches=16, options={POOL: True, "pp_recv_buffer_pool_slack": 0})[0]
    assert pooled[0] - less == 2 * 64 * 256 * 2


@pytest.mark.parametrize(("defer", "late"), [(True, True), (False, False)])
def test_gradients_are_reduced_when_all_microbatches_are_through(defer: bool, late: bool) -> None:
    """torch's REDUCE_GRAD, behind the last backward pass; or with each, of Automodel's own patch."""
    program = small.program_of("automodel", PP, microbatches=3, options={"defer_fsdp_grad_sync": defer}, **LLAMA)
    rows = program.columns.tolist()
    scatters = {number for (name, *_), number in program.tables.comms.items() if name == "reduce_scatter"}
    reduces = [at for at, row in enumerate(rows) if row[0] == Op.COLLECTIVE and row[2] in scatters]
    last = max(at for at, (row, phase) in enumerate(zip(rows, program.phase.tolist(), strict=True))
               if row[0] == Op.COMPUTE and row[2] == Kernel.GEMM and phase == Phase.BACKWARD)
    assert reduces
    assert (reduces[0] > last) is late


@pytest.mark.parametrize(("schedule", "more"), [("1f1b", 0), ("gpipe", 256 * 2)])
def test_the_upper_end_has_the_whole_batch(schedule: str, more: int) -> None:
    """And under gpipe the gradients that are on their way; nothing without stages."""
    _, table = small.prepared("automodel", PP, microbatches=8, pipeline={"schedule": schedule}, **LLAMA)
    assert table.unseen_bytes == 8 * 64 * (40 + more)
    assert small.prepared("automodel", {"dp_shard": 2}, microbatches=8, **LLAMA)[1].unseen_bytes == 0


def test_unseen_bytes_widen_the_band_upwards_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with_them = _ran(microbatches=8).ranks[0].peak
    monkeypatch.setattr("simcore.frameworks.automodel.pipeline._unseen_bytes", lambda *_: 0)
    without = _ran(microbatches=8).ranks[0].peak
    assert with_them is not None
    assert without is not None
    assert with_them.band_bytes == (without.band_bytes[0], without.band_bytes[1] + 8 * 64 * 40)
    assert with_them.device_bytes == without.device_bytes


@pytest.mark.parametrize(("mesh", "version", "options", "message"), [
    ({"dp_shard": 2}, "auto", {POOL: True}, "changes nothing without pipeline stages"),
    (PP, "auto", {"pp_recv_buffer_pool_slack": 0}, "changes nothing without pp_recv_buffer_pool"),
    (PP, "0.4.0", {POOL: True}, "changes nothing before 0.7.0"),
    (PP, "auto", {"pp_recv_buffer_pool_slack": -1, POOL: True}, "expected 0 or int"),
    (PP, "auto", {POOL: "yes"}, "expected true or false")])
def test_a_pool_that_changes_nothing_is_refused(mesh: dict[str, int], version: str, options: dict[str, Any],
                                                message: str) -> None:
    with pytest.raises(InputError, match=message):
        small.prepared("automodel", mesh, version=version, options=options, microbatches=4, **LLAMA)


def test_a_schedule_without_a_bound_has_no_pool() -> None:
    with pytest.raises(InputError, match="under the schedule gpipe"):
        small.prepared("automodel", PP, options={POOL: True}, microbatches=4, pipeline={"schedule": "gpipe"}, **LLAMA)


@pytest.mark.parametrize(("given", "loss", "error", "message"), [
    (LLAMA, "cut", NotYet, "cut with pipeline stages"), (LLAMA, "te_inplace", NotYet, "te_inplace with pipeline"),
    ({}, "chunked", IllegalLayout, "requires pipeline stages that can return hidden states"),
    ({}, "cut", IllegalLayout, "the recipe takes MaskedCrossEntropy")])
def test_losses_that_stages_do_not_serve(given: dict[str, Any], loss: str, error: type[Exception],
                                         message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared("automodel", PP, loss=loss, microbatches=4, **given)


def test_workers_of_nemo_rl_have_no_stages() -> None:
    with pytest.raises(IllegalLayout, match="pp_size 1"):
        small.prepared("automodel", PP, version=NEMO_RL, implementation="hf", microbatches=4, **LLAMA)
