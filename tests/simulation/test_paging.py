"""Paged optimizer states: room on the device, and least time of the pages without, by hand."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.hardware.topology import load_topology
from simcore.results.report import Peak, Report
from simcore.results.time import StepTime
from simcore.simulate import simulate

GIB = 2**30


def run(usable: str = "auto", *, paged: bool = True, topology: str = "rtx-3090", **given: Any) -> Report:
    scenario = small.scenario("ddp", {}, model="llama-3.2-1b", topology=topology, seq_len=512, recompute="full",
                              precision={"params": "bf16"},
                              optimizer={"implementation": "bitsandbytes", "paged": paged}, **given)
    limits = scenario.limits.model_copy(update={"usable_memory": usable})
    report = simulate(scenario.model_copy(update={"limits": limits}))
    assert report.status == "ok", report.problems
    return report


def peak_of(report: Report) -> Peak:
    assert report.peak_rank is not None
    assert report.peak_rank.peak is not None
    return report.peak_rank.peak


def time_of(report: Report) -> StepTime:
    assert report.time is not None
    return report.time


def test_where_all_have_room_nothing_moves() -> None:
    paged, less = run(), run("18 GiB")
    assert time_of(paged).step_s == time_of(less).step_s
    assert not [one for one in time_of(paged).communication if one.axis == "to_device"]
    assert peak_of(paged).outside["paged_states"] == pytest.approx(8 * 1_235_814_400, rel=1e-3)
    assert not any("pages" in one.what for one in paged.assumptions)


def test_what_has_no_room_leaves_the_device_and_takes_time() -> None:
    wide, narrow = run(), run("12 GiB")
    away = peak_of(wide).outside["paged_states"] - peak_of(narrow).outside["paged_states"]
    assert away == peak_of(wide).device_bytes - 12 * GIB
    assert (narrow.verdict, narrow.headroom_bytes) == ("fits", 0)
    link = load_topology("rtx-3090").node.host_link
    least = away / min(link.to_device.si, link.to_host.si)
    for name in ("step_s", "optimizer_s", "exposed_communication_s"):
        assert getattr(time_of(narrow), name) - getattr(time_of(wide), name) == pytest.approx(least, rel=1e-6), name
    assert sum(time_of(narrow).parts.values()) == pytest.approx(time_of(narrow).step_s)
    (told,) = (one for one in narrow.assumptions if one.what == "pages of optimizer states")
    assert "at least" in told.value
    assert told.kind == "assumed"


def test_what_has_no_room_lies_on_the_host() -> None:
    """Before the first step there are no states."""
    wide, narrow = run(), run("12 GiB")
    away = peak_of(wide).outside["paged_states"] - peak_of(narrow).outside["paged_states"]
    assert peak_of(narrow).host_bytes - peak_of(wide).host_bytes == away > GIB
    assert wide.host is not None
    assert narrow.host is not None
    for before, after in zip(wide.host.phases, narrow.host.phases, strict=True):
        held = after.by_owner.get("optimizer states", 0)
        assert held == (0 if after.phase == "load" else away)
        assert after.host_bytes - before.host_bytes == held


def test_what_is_not_paged_must_have_room() -> None:
    assert run("5 GiB").verdict == "oom"
    assert run("12 GiB", paged=False).verdict == "oom"


def test_one_memory_for_host_and_device_makes_no_room() -> None:
    report = run("12 GiB", topology="dgx-spark")
    assert report.verdict == "oom"
    assert not any("pages" in one.what for one in report.assumptions)
