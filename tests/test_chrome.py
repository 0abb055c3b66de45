"""Traces for Perfetto: in the format's form, as long as the report's step, no slice of a thread over another."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import pytest

import small
from simcore.report import Report
from simcore.simulate import simulate
from viz.chrome import chrome_trace

CASES: list[tuple[str, dict[str, int], int]] = [
    ("fsdp2", {"dp_shard": 8}, 1), ("automodel", {"dp_shard": 4, "ep": 2}, 2),
    ("megatron", {"dp_shard": 2, "tp": 2}, 1), ("automodel", {"dp_shard": 2, "pp": 5}, 5),
    ("megatron", {"dp_shard": 4}, 8)]
Events = list[dict[str, Any]]


@cache
def made(number: int) -> tuple[Report, dict[str, Any]]:
    framework, mesh, microbatches = CASES[number]
    report = simulate(small.scenario(framework, mesh, microbatches=microbatches), detail=True)
    return report, json.loads(chrome_trace(report)[0])


def events(number: int, kind: str) -> Events:
    return [event for event in made(number)[1]["traceEvents"] if event["ph"] == kind]


def ns(us: float) -> int:
    return round(us * 1000)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_event_has_what_its_kind_needs(number: int) -> None:
    needed = {"M": {"args"}, "X": {"ts", "dur", "args", "cat"}, "C": {"ts", "args"}}
    for event in made(number)[1]["traceEvents"]:
        assert {"ph", "pid", "name"} | needed[event["ph"]] <= set(event)
        assert event["ph"] == "C" or isinstance(event["tid"], int)
        assert event.get("dur", 1) > 0
        assert event.get("ts", 0) >= 0
    dates = [event["ts"] for event in made(number)[1]["traceEvents"] if "ts" in event]
    assert dates == sorted(dates)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_no_slice_lies_over_another_of_its_thread(number: int) -> None:
    threads: dict[tuple[int, int], Events] = {}
    for event in events(number, "X"):
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(threads) >= 3
    for slices in threads.values():
        for before, after in itertools.pairwise(slices):
            assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_slices_end_where_the_timeline_does(number: int) -> None:
    report, trace = made(number)
    assert report.time is not None
    assert report.detail is not None
    assert report.detail.end_s is not None
    last = max(ns(event["ts"]) + ns(event["dur"]) for event in events(number, "X"))
    assert last == round(report.detail.end_s * 1e9)
    assert trace["otherData"]["step_s"] == report.time.step_s
    assert bool(trace["otherData"]["left_out"]) == (report.detail.written_out < report.detail.num_microbatches)


def test_kernels_and_waits_fill_the_step_of_the_slowest_ranks() -> None:
    for number in (0, 1, 3):
        report, _ = made(number)
        assert report.time is not None
        worst = int(report.time.ranks[0].partition("-")[0])
        sums = {name: sum(ns(e["dur"]) for e in events(number, "X") if e["cat"] == name and e["pid"] == worst)
                for name in ("compute", "waits")}
        parts = report.time.parts
        kernels = sum(parts[name] for name in ("forward", "backward", "optimizer", "contention"))
        assert sums["compute"] == pytest.approx(kernels * 1e9, abs=20)
        assert sums["compute"] + sums["waits"] == round(report.time.step_s * 1e9)


def test_counters_are_the_memory_of_the_report() -> None:
    report, _ = made(3)
    for rank in report.ranks:
        assert rank.memory is not None
        number = int(rank.ranks[0].partition("-")[0])
        found = [sum(event["args"].values()) for event in events(3, "C") if event["pid"] == number]
        assert found == [sum(values) for values in zip(*rank.memory.values, strict=True)]


def test_processes_say_for_whom_they_stand() -> None:
    names = [event["args"]["name"] for event in events(3, "M") if event["name"] == "process_name"]
    assert names == [f"rank {2 * stage}, stands for {2 * stage}-{2 * stage + 1}" for stage in range(5)]


def test_a_name_can_be_anything() -> None:
    report, _ = made(0)
    text, _ = chrome_trace(report.model_copy(update={"name": "a\x1b[31m\"}, {\u202e\ud800"}))
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["otherData"]["scenario"] == 'a\\x1b[31m"}, {\\u202e\\ud800'


def test_the_same_report_is_the_same_text() -> None:
    report, _ = made(1)
    again = Report.model_validate_json(report.model_dump_json())
    assert chrome_trace(again) == chrome_trace(report)
