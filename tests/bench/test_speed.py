"""How long the engine takes, on a quiet machine: `make bench`. Nothing is asserted about time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simcore.document import parse_document
from simcore.report import Report
from simcore.scenario import Scenario, parse_scenario
from simcore.simulate import simulate

ROOT = Path(__file__).parents[2]
Benchmark = Callable[[Callable[[], Any]], Any]


def nano(framework: str, mesh: dict[str, int], *, microbatches: int = 1) -> Scenario:
    """The 30B mixture of experts on sequences of 4096 tokens."""
    copies = mesh.get("dp_replicate", 1) * mesh["dp_shard"]
    data = {"name": "nano", "model": "nemotron-3-nano-30b-a3b", "framework": framework, "topology": "dgx-h100",
            "mesh": mesh, "training": {"seq_len": 4096, "global_batch_size": microbatches * copies}}
    return parse_scenario(parse_document(json.dumps(data), "nano.json"))


def timed(benchmark: Benchmark, work: Callable[[], Report]) -> None:
    report = benchmark(work)
    assert report.status == "ok", report.problems


@pytest.mark.parametrize("framework", ["fsdp2", "automodel", "megatron"])
@pytest.mark.parametrize("microbatches", [1, 64])
@pytest.mark.parametrize("timeline", [False, True], ids=["memory", "timeline"])
def test_nano_8_ranks(benchmark: Benchmark, framework: str, microbatches: int, timeline: bool) -> None:
    scenario = nano(framework, {"dp_shard": 8, "ep": 8}, microbatches=microbatches)
    timed(benchmark, partial(simulate, scenario, timed=timeline))


@pytest.mark.parametrize("framework", ["fsdp2", "megatron"])
@pytest.mark.parametrize("timeline", [False, True], ids=["memory", "timeline"])
def test_nano_131072_ranks(benchmark: Benchmark, framework: str, timeline: bool) -> None:
    scenario = nano(framework, {"dp_replicate": 2048, "dp_shard": 64, "ep": 64})
    timed(benchmark, partial(simulate, scenario, timed=timeline))


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
