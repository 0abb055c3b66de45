"""Time that the engine takes, on a quiet machine: `make bench`. Promises are asserted of the best round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.distinct import SPACES, milliseconds
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import Scenario, parse_scenario
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.timing.streams import RankStreams
from simcore.timing.timeline import ClassTimes, Communicators

ROOT = Path(__file__).parents[2]
Benchmark = Any
"""pytest-benchmark's fixture: called with what is to be timed; `stats` when it was."""

LIMIT_8_RANKS_S, LIMIT_8_STAGES_S, LIMIT_131072 = 0.015, 0.3, 3.0
"""A step with its timeline: of 8 ranks; of 8 stages and 64 microbatches; of 131,072 ranks, in steps of 8."""
LIMIT_AGAIN_MS = 3.0
"""Memory and time of a layout that the process has met."""
LIMIT_OPS = 250
"""Items and calls of a stage, a microbatch."""
BUSY = pytest.mark.benchmark(timer=time.process_time)
"""Time of one thread, without other work of the machine."""


def nano(framework: str, mesh: dict[str, int], *, microbatches: int = 1, **training: Any) -> Scenario:
    """The 30B mixture of experts on sequences of 4096 tokens."""
    copies = mesh.get("dp_replicate", 1) * mesh["dp_shard"]
    data = {"name": "nano", "model": "nemotron-3-nano-30b-a3b", "framework": framework, "topology": "dgx-h100",
            "mesh": mesh, "training": {"seq_len": 4096, "global_batch_size": microbatches * copies, **training}}
    return parse_scenario(parse_document(json.dumps(data), "nano.json"))


def timed(benchmark: Benchmark, work: Callable[[], Report], limit_s: float = float("inf")) -> None:
    report = benchmark(work)
    assert report.status == "ok", report.problems
    assert benchmark.stats is None or benchmark.stats.stats.min <= limit_s, "the best round is above what is promised"


def staged(framework: str, shards: int) -> Scenario:
    """8 stages, 64 microbatches."""
    cut = {"pipeline": {"layers": [7, 7, 7, 7, 6, 6, 6, 6]}} if framework == "megatron" else {}
    return nano(framework, {"pp": 8, "dp_shard": shards, "ep": shards}, microbatches=64, **cut)


def in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every microbatch is written out, and none extrapolated."""
    simulation = import_module("simcore.simulation.step")
    monkeypatch.setattr(simulation, "lowered_microbatches", lambda schedule, count, doublings: count)


@BUSY
@pytest.mark.parametrize("framework", ["fsdp2", "automodel", "megatron"])
@pytest.mark.parametrize("microbatches", [1, 64])
@pytest.mark.parametrize("timeline", [False, True], ids=["memory", "timeline"])
def test_nano_8_ranks(benchmark: Benchmark, framework: str, microbatches: int, timeline: bool) -> None:
    scenario = nano(framework, {"dp_shard": 8, "ep": 8}, microbatches=microbatches)
    timed(benchmark, partial(simulate, scenario, timed=timeline), LIMIT_8_RANKS_S)


@BUSY
@pytest.mark.parametrize("framework", ["automodel", "megatron"])
@pytest.mark.parametrize("full", [False, True], ids=["extrapolated", "in full"])
def test_nano_8_stages(benchmark: Benchmark, framework: str, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if full:
        in_full(monkeypatch)
    timed(benchmark, partial(simulate, staged(framework, 8)), LIMIT_8_STAGES_S)


@pytest.mark.parametrize("framework", ["automodel", "megatron"])
def test_ops_of_a_stage(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items and calls of the timeline, all microbatches written out."""
    in_full(monkeypatch)
    clocked, ops = import_module("simcore.timing.step"), list[int]()
    run = clocked.run

    def counted(tracks: Sequence[RankStreams], wiring: Communicators) -> list[ClassTimes]:
        ops.extend(len(t.skeleton.items) + sum(map(len, t.skeleton.calls.values())) for t in tracks)
        found: list[ClassTimes] = run(tracks, wiring)
        return found

    monkeypatch.setattr(clocked, "run", counted)
    assert simulate(staged(framework, 8)).status == "ok"
    assert len(ops) == 8
    assert max(ops) <= 64 * LIMIT_OPS


@pytest.mark.parametrize("framework", ["fsdp2", "megatron"])
def test_131072_ranks_are_little_more_than_8(framework: str) -> None:
    """The best of rounds that take turns, so that both meet the machine in the same mood."""
    few = nano(framework, {"dp_shard": 8, "ep": 8})
    many = nano(framework, {"dp_replicate": 2048, "dp_shard": 64, "ep": 64})
    rounds = [(seconds(few), seconds(many)) for _ in range(40)]
    of_few, of_many = map(min, zip(*rounds, strict=True))
    assert of_many <= LIMIT_131072 * of_few


def seconds(scenario: Scenario) -> float:
    began = time.process_time()
    assert simulate(scenario).status == "ok"
    return time.process_time() - began


@BUSY
@pytest.mark.parametrize("framework", ["fsdp2", "megatron"])
@pytest.mark.parametrize("timeline", [False, True], ids=["memory", "timeline"])
def test_nano_131072_ranks(benchmark: Benchmark, framework: str, timeline: bool) -> None:
    scenario = nano(framework, {"dp_replicate": 2048, "dp_shard": 64, "ep": 64})
    timed(benchmark, partial(simulate, scenario, timed=timeline))


@pytest.mark.parametrize("space", SPACES)
def test_layouts_met_again_take_little(space: str) -> None:
    """Memory and time of a layout in a search; the first meeting is printed by `bench.distinct`."""
    _, (first, again) = milliseconds(space, "timed", 2)
    assert again <= min(LIMIT_AGAIN_MS, first)


def test_parsing(benchmark: Benchmark) -> None:
    benchmark(partial(nano, "fsdp2", {"dp_shard": 8}))


# ---- from outside ---------------------------------------------------------------------------------------------------
def test_start_to_first_table(benchmark: Benchmark) -> None:
    benchmark(partial(rankscope, "run", "scenarios/first-look/first-look.yaml"))


def test_sweep_of_1000(benchmark: Benchmark, tmp_path: Path) -> None:
    """Ten lengths, ten ranks of adapters, ten microbatch sizes, on two processes."""
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps({
        "name": "sweep", "model": "llama-tiny", "framework": "fsdp2", "topology": "dgx-h100", "mesh": {"dp_shard": 8},
        "training": {"seq_len": 128, "method": "lora"},
        "sweep": {"training.seq_len": [128 * n for n in range(1, 11)], "training.lora.rank": list(range(8, 88, 8)),
                  "training.micro_batch_size": list(range(1, 11))}}), encoding="utf-8")
    out = benchmark(partial(rankscope, "run", "-j", "2", "--json", str(path)))
    assert len(json.loads(out)) == 1000


def rankscope(*arguments: str) -> str:
    """A fresh process, as a person starts one: from compiled files, as an installed package has them."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-m", "simcore", *arguments], cwd=ROOT, capture_output=True, text=True,
                          check=True, env=kept)
    return done.stdout
