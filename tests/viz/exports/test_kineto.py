"""Traces as PyTorch's profiler writes them, in which HolisticTraceAnalysis finds ranks, kernels and the overlap."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.results.detail import Span
from simcore.results.report import Report
from simcore.simulate import simulate
from viz.exports.kineto import kineto_traces, overlap
from viz.exports.slices import Slice

TRUTH = ROOT / "tests/truth"
STORED: list[dict[str, Any]] = json.loads((TRUTH / "hta" / "overlap-0.5.0.json").read_text(encoding="utf-8"))
CASES: list[tuple[str, dict[str, int], int, int]] = [
    ("fsdp2", {"dp_shard": 8}, 1, 64), ("automodel", {"dp_shard": 4, "ep": 2}, 2, 64),
    ("megatron", {"dp_shard": 2, "tp": 2}, 1, 64), ("automodel", {"dp_shard": 2, "pp": 5}, 5, 64),
    ("fsdp2", {"dp_shard": 3}, 2, 32768), ("megatron", {"dp_shard": 4}, 2, 32768)]
"""Framework, mesh, microbatches and tokens of a sequence."""
EVERY = pytest.mark.parametrize("number", range(len(CASES)))
# The expressions of hta/common/trace_file.py and hta/utils/utils.py, 0.5.0.
RANK = re.compile(r'"rank":\s+(\d+)')
COMMUNICATION, COPY = re.compile(r"^nccl.*Kernel"), re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
NO_COMPUTATION = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")


@cache
def traces_of(number: int) -> tuple[Report, dict[str, str]]:
    framework, mesh, microbatches, seq_len = CASES[number]
    asked = small.scenario(framework, mesh, microbatches=microbatches, seq_len=seq_len)
    report = simulate(asked, detail=True, whole=True)
    return report, kineto_traces(report)[0]


def files(number: int) -> list[dict[str, Any]]:
    return [json.loads(text) for text in traces_of(number)[1].values()]


def of(file: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in file["traceEvents"] if event.get("cat") == category]


def ns(us: float) -> int:
    return round(us * 1000)


@EVERY
def test_a_file_is_found_under_its_rank(number: int) -> None:
    report, texts = traces_of(number)
    firsts = [int(rank.ranks[0].partition("-")[0]) for rank in report.ranks]
    assert list(texts) == [f"rank{first}.pt.trace.json" for first in firsts]
    for first, text in zip(firsts, texts.values(), strict=True):
        match = RANK.search(text)
        assert match is not None
        assert int(match[1]) == first
        info = json.loads(text)["distributedInfo"]
        assert info == {"backend": "nccl", "rank": first, "world_size": sum(rank.num_ranks for rank in report.ranks)}


def test_the_scenarios_name_is_not_taken_for_the_rank() -> None:
    report, _ = traces_of(3)
    named = report.model_copy(update={"name": '"rank": 7 \x1b'})
    texts = kineto_traces(named)[0]
    assert [RANK.search(text)[1] for text in texts.values()] == ["0", "2", "4", "6", "8"]  # type: ignore[index]
    assert json.loads(texts["rank0.pt.trace.json"])["rankscope"]["scenario"] == '"rank": 7 \\x1b'


@EVERY
def test_one_iteration_is_as_long_as_the_step_and_holds_all_kernels(number: int) -> None:
    report, _ = traces_of(number)
    assert report.time is not None
    for file in files(number):
        (step,) = [event for event in of(file, "user_annotation") if event["name"].startswith("ProfilerStep#")]
        assert (step["ts"], ns(step["dur"])) == (0, round(report.time.step_s * 1e9))
        assert file["rankscope"]["end_s"] == report.time.step_s
        kernels = of(file, "kernel")
        assert kernels
        assert max(ns(event["ts"]) + ns(event["dur"]) for event in kernels) <= ns(step["dur"])


@EVERY
def test_kernels_are_told_apart_by_their_names(number: int) -> None:
    for file in files(number):
        for event in of(file, "kernel"):
            is_call = "Collective name" in event["args"]
            assert bool(COMMUNICATION.match(event["name"])) == is_call
            assert is_call or not NO_COMPUTATION.match(event["name"])
            assert not COPY.match(event["name"])


@EVERY
def test_every_kernel_was_launched_before_it_began(number: int) -> None:
    for file in files(number):
        launches = {event["args"]["correlation"]: event for event in of(file, "cuda_runtime")}
        kernels = [*of(file, "kernel"), *of(file, "gpu_memcpy")]
        assert sorted(event["args"]["correlation"] for event in kernels) == sorted(launches)
        for event in kernels:
            assert launches[event["args"]["correlation"]]["ts"] <= event["ts"]
            assert event["args"]["stream"] == event["tid"] >= 0
        dates = [event["ts"] for event in launches.values()]
        assert dates == sorted(dates)


@pytest.mark.parametrize("row", STORED, ids=lambda row: row["name"])
def test_the_overlap_is_what_hta_makes_of_the_same_intervals(row: dict[str, Any]) -> None:
    threads = {lane: [Slice("", start, end) for start, end in row.get(kind, ())]
               for lane, kind in (("compute", "compute"), ("all_gather", "communication"), ("copy", "copy"))}
    assert round(100 * overlap(threads), 2) == pytest.approx(row["overlap_pctg"], abs=0.0101)


def test_the_stored_cases_have_all_shares() -> None:
    shares = {row["overlap_pctg"] for row in STORED}
    assert {0.0, 50.0, 100.0} < shares
    assert len(shares) > 10


@EVERY
def test_a_file_tells_the_overlap_of_the_timeline(number: int) -> None:
    """Recomputed from the spans of the report, between each two times at which a span begins or ends."""
    report, _ = traces_of(number)
    assert report.detail is not None
    for detail, file in zip(report.detail.classes, files(number), strict=True):
        changes = sorted((round(at * 1e9), kind_of(span), by) for span in detail.spans
                         for at, by in ((span.start_s, 1), (span.end_s, -1)))
        running = {"kernel": 0, "wait": 0, "call": 0}
        both = calls = 0
        for (now, kind, by), (then, _, _) in pairwise(changes):
            running[kind] += by
            calls += (then - now) * bool(running["call"])
            both += (then - now) * bool(running["call"] and running["kernel"] and not running["wait"])
        assert file["rankscope"]["overlap"] == pytest.approx(both / calls, abs=1e-9)


def test_some_of_the_overlaps_are_neither_none_nor_all() -> None:
    shares = [file["rankscope"]["overlap"] for number in range(len(CASES)) for file in files(number)]
    assert sum(0.05 < share < 0.95 for share in shares) >= 3, shares


def kind_of(span: Span) -> str:
    if span.lane != "compute":
        return "call"
    return "wait" if span.kind in ("host", "communication", "bubble") else "kernel"


@EVERY
def test_calls_say_what_they_move(number: int) -> None:
    report, _ = traces_of(number)
    sizes = {(row.collective, row.axis): row.group_size for rank in report.ranks for row in rank.traffic}
    for event in (event for file in files(number) for event in of(file, "kernel")):
        args = event["args"]
        if "Collective name" not in args:
            continue
        assert args["Group size"] in sizes.values()
        assert args["dtype"] in ("Float", "BFloat16", "Int", "Long")
        grown = {"_allgather_base": args["Group size"], "_reduce_scatter_base": 1 / args["Group size"]}
        expected = args["In msg nelems"] * grown.get(args["Collective name"], 1)
        assert args["Out msg nelems"] == pytest.approx(expected, abs=args["Group size"])


def test_copies_are_no_kernels() -> None:
    asked = small.scenario("fsdp2", {"dp_shard": 2}, offload={"params": "host", "optimizer": "host",
                                                             "gradients": "host"})
    report = simulate(asked, detail=True)
    assert report.status == "ok", report.problems
    (text,) = kineto_traces(report)[0].values()
    copies = of(json.loads(text), "gpu_memcpy")
    assert {event["name"] for event in copies} == {"Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pinned -> Device)"}
    assert all(event["args"]["bytes"] > 0 for event in copies)


def test_the_same_report_is_the_same_text() -> None:
    report, texts = traces_of(1)
    assert kineto_traces(Report.model_validate_json(report.model_dump_json()))[0] == texts


def test_hta_itself_reads_the_same_numbers(tmp_path: Path) -> None:
    if find_spec("hta") is None or find_spec("hta.trace_analysis") is None:  # a folder of truth is called so too
        pytest.skip("HolisticTraceAnalysis is not installed here: make truth asks it")
    for number in range(len(CASES)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in traces_of(number)[1].items():
            (folder / name).write_text(text, encoding="utf-8")
    ran = subprocess.run([sys.executable, str(TRUTH / "probe_hta.py"), "--check", *map(str, tmp_path.iterdir())],
                         capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("overlap") == sum(len(traces_of(number)[1]) for number in range(len(CASES)))
