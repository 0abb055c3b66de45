"""Results and an engine small enough to see through, for tests of what surrounds the engine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcore.errors import Problem
from simcore.results.report import AtRest, Owner, Peak, ProblemRow, RankReport, Report, StepTime, TrafficRow
from simcore.validation.runs import Measured, read_measured

GIB = 2**30
MESH = {"pp": 2, "dp_replicate": 1, "dp_shard": 4, "cp": 1, "tp": 2, "ep": 4}


def reader(folder: Path) -> Callable[..., list[Measured]]:
    """Measured rows written into a folder, and read as those that come with the project are."""

    def read(*rows: dict[str, Any]) -> list[Measured]:
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        found, problems = read_measured([str(folder / "rows.jsonl")])
        assert problems == []
        return found

    return read


def rank(peak_gib: float | None = 40, **changed: object) -> RankReport:
    values: dict[str, object] = {
        "ranks": ("0-3",),
        "num_ranks": 4,
        "coordinates": {"pp": 0, "dp_shard": "0-3"},
        "stage": 0,
        "at_rest": {
            "attention": AtRest(params_bytes=GIB, grads_bytes=GIB, optimizer_bytes=2 * GIB, num_params=2**29,
                                num_trainable_params=2**29),
            "routed_experts": AtRest(params_bytes=3 * GIB, num_params=3 * 2**29),
        },
        "padding_bytes": 1024,
        "grads_persist": False,
        "peak": None if peak_gib is None else peak(peak_gib),
        "traffic": (traffic("all_gather", 6), traffic("reduce_scatter", 3), traffic("all_to_all", 2)),
    }
    return RankReport.model_validate(values | changed)


def peak(gib: float) -> Peak:
    size = int(gib * GIB)
    return Peak(
        allocated_bytes=size - 2 * GIB, reserved_bytes=size - GIB, device_bytes=size, phase="backward",
        event="bwd:layers.51", layer="layers.51", microbatch=1,
        by_category={"activation": size - 4 * GIB, "opt_state": 2 * GIB},
        by_phase={"backward": size}, top=(Owner(owner="layers.51/x", category="activation", bytes=GIB),),
        reserved_band_bytes=(size - 2 * GIB, size - GIB), outside={"context": GIB},
        band_bytes=(size - GIB, size + GIB),
    )


def traffic(collective: str, gib: int) -> TrafficRow:
    return TrafficRow(collective=collective, axis="dp_shard", group_size=4, phase="forward", dtype="bf16", calls=3,
                      payload_bytes=gib * GIB * 4 // 3, wire_bytes=gib * GIB)


def report(name: str = "a", peak_gib: float | None = 40, step_s: float = 0.5, **changed: object) -> Report:
    fits = peak_gib is None or peak_gib <= 80
    values: dict[str, object] = {
        "name": name,
        "scenario": {"name": name, "framework": "fsdp2", "mesh": MESH, "training": {"method": "lora"}},
        "status": "ok",
        "verdict": None if peak_gib is None else ("fits" if fits else "oom"),
        "capacity_bytes": 80 * GIB,
        "ranks": (rank(peak_gib),),
        "time": StepTime(step_s=step_s, forward_s=0.1, backward_s=0.3, optimizer_s=0.1, exposed_communication_s=0.05,
                         tokens_per_s_per_gpu=12_345.6, model_tflops_per_gpu=300, mfu=0.3),
    }
    return Report.model_validate(values | changed)


def illegal(name: str) -> Report:
    row = ProblemRow(where="x.yaml:3", message="ep=3 does not divide 128 experts", rule="fsdp2: experts")
    return Report(name=name, scenario={"name": name, "framework": "fsdp2"}, status="illegal", problems=(row,))


@dataclass(frozen=True)
class FakeScenario:
    name: str
    does: str = "fits"
    swept: bool = False
    folder: Path = Path()

    def normalised(self) -> dict[str, Any]:
        return {"name": self.name, "does": self.does}


@dataclass(frozen=True)
class FakeEntry:
    name: str
    where: str = "x.yaml:1"
    scenario: FakeScenario | None = None
    problems: tuple[Problem, ...] = field(default=())


def entry(name: str, does: str = "fits", *, swept: bool = False) -> FakeEntry:
    return FakeEntry(name, f"{name}.yaml:1", FakeScenario(name, does, swept))


def unreadable(name: str) -> FakeEntry:
    return FakeEntry(name, f"{name}.yaml", None, (Problem(f"{name}.yaml:7", "unknown key 'tensor_paralel'"),))


def answered(work: Callable[..., Report], scenario: FakeScenario, **asked: Any) -> Report:
    """The report of one scenario as `work` gives it."""
    return work(scenario, **asked)


def work(scenario: FakeScenario, **_: object) -> Report:
    """Behaves as the scenario's word says."""
    word, _colon, argument = scenario.does.partition(":")
    if word == "crash":
        raise ZeroDivisionError("the engine is wrong")
    if word == "die":
        os._exit(9)
    if word == "die_once" and not Path(argument).exists():
        Path(argument).touch()
        os._exit(9)
    if word == "pid":
        (Path(argument) / str(os.getpid())).touch()
    while word == "busy":
        pass
    if word == "slow":
        time.sleep(float(argument))
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "illegal":
        return illegal(scenario.name)
    return report(scenario.name, 100 if word == "oom" else 40)
