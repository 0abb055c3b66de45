"""Time and memory that the host and its libraries add to a Megatron job."""

from __future__ import annotations

from typing import Any

import pytest

import small
from frameworks.megatron.asked import DEEP
from simcore.hardware.efficiency import load_efficiency
from simcore.placement.libraries import KernelLibraries
from simcore.simulate import simulate
from simcore.timing.streams import RankStreams, tracks


def _libraries(mesh: dict[str, int], **given: Any) -> KernelLibraries:
    return small.prepared("megatron", mesh, **given)[1].libraries


def test_the_host_waits_for_messages_unless_they_overlap() -> None:
    """Bridge 0.3.1 `training/comm_overlap.py`: batched and waited for, but with virtual stages."""
    assert not _libraries({}, model=DEEP).waits_for_messages
    assert _libraries({"pp": 2}, model=DEEP).waits_for_messages
    assert not _libraries({"pp": 2}, model=DEEP, microbatches=4, pipeline={"virtual_stages": 2}).waits_for_messages


def test_a_host_that_waits_for_messages_makes_the_bubble_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model runs at the pace of its host, which would else issue ahead of what has not arrived.

    Stages are not quite equal, so that three of four times its own work is not met to the digit.
    """
    def spent() -> tuple[float, float]:
        found = simulate(small.scenario("megatron", {"pp": 4}, model=DEEP, microbatches=4)).time
        assert found is not None
        work = found.parts["host"] - load_efficiency("h100").host.step.si
        return found.parts["bubble"] / work, found.step_s

    def at_once(*given: Any, stops_at_messages: bool, **more: Any) -> RankStreams:
        assert stops_at_messages
        return tracks(*given, **more)

    bubble, step_s = spent()
    assert bubble == pytest.approx(3 / 4, abs=0.2)
    monkeypatch.setattr("simcore.timing.step.tracks", at_once)
    assert spent()[1] < step_s


def test_deterministic_mode_slows_the_host() -> None:
    assert _libraries({}, options={"deterministic_mode": True}).fills
    assert not _libraries({}).fills


def test_statistics_of_tensors_cost_the_host_once_a_step() -> None:
    """Megatron-LM `optimizer.count_zeros` goes over all gradients, whatever the number of microbatches."""
    host = load_efficiency("h100").host
    assert not _libraries({}).counts_zeros
    for microbatches in (1, 2):
        plain, logged = (
            simulate(small.scenario("megatron", {}, model=DEEP, microbatches=microbatches, options=options))
            for options in ({}, {"log_num_zeros_in_grad": True}))
        assert plain.time is not None
        assert logged.time is not None
        assert logged.time.step_s - plain.time.step_s == pytest.approx(host.statistics.si, abs=1e-8)
        assert logged.ranks == plain.ranks
