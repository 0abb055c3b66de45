"""Memory over all phases in a report: the peak is in it, times never fall, and training has its own moments."""

from __future__ import annotations

import pytest

from rl.test_workload import DPO, GRPO, asked
from simcore.inputs.scenario import Scenario
from simcore.rl.report import phase_series
from simcore.simulate import simulate


@pytest.mark.parametrize("base", [GRPO, DPO], ids=["grpo", "dpo"])
def test_the_series_reaches_the_peak_and_passes_every_phase(base: dict[str, object]) -> None:
    report = simulate(asked(base), series=True)
    rank = report.ranks[0]
    assert rank.memory is not None
    assert rank.peak is not None
    totals = [sum(at) for at in zip(*rank.memory.values, strict=True)]
    assert max(totals) == rank.peak.allocated_bytes
    names = list(dict.fromkeys(rank.memory.phases))
    assert [name for name in names if name in {phase.phase for phase in report.phases}] == [
        phase.phase for phase in report.phases]
    assert {"forward", "backward", "optimizer"} <= set(names)
    assert rank.memory.time_s[0] == 0
    assert max(rank.memory.time_s) <= report.phases[-1].start_s + report.phases[-1].seconds + 1e-9


def test_dates_follow_the_phases() -> None:
    report = simulate(asked(), series=True)
    memory = report.ranks[0].memory
    assert memory is not None
    for phase in report.phases[:-1]:
        inside = [at for at, name in zip(memory.time_s, memory.phases, strict=True) if name == phase.phase]
        assert min(inside) == pytest.approx(phase.start_s)
        assert max(inside) == pytest.approx(phase.start_s + phase.seconds)


def test_the_band_contains_the_likely_peak_of_every_phase() -> None:
    """A forward pass of the reference model that peaks above the step rounds its fragmentation up for itself."""
    report = simulate(Scenario.model_validate({
        "name": "tiny", "model": {"config": "nemotron-3-tiny"}, "topology": "h100-96gb-hbm2e", "framework": "fsdp2",
        "training": {"seq_len": 1, "method": "lora"}, "workload": "dpo"}))
    assert report.peak_rank is not None
    assert report.peak_rank.peak is not None
    assert report.peak_rank.peak.phase == "reference"
    assert report.band_bytes is not None
    assert report.highest_bytes is not None
    low, high = report.band_bytes
    assert low <= report.highest_bytes <= high


def test_without_pictures_there_is_none() -> None:
    assert simulate(asked()).ranks[0].memory is None
    assert phase_series.__doc__
