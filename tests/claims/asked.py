"""Questions of claims to the engine: counts, bytes at rest, peaks; GB is 1e9 bytes, as in the documents."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from simcore.inputs.loading import load
from simcore.inputs.scenario import Scenario
from simcore.results.report import RankReport, Report
from simcore.simulate import place, simulate

__all__ = ["GB", "NANO", "at_rest_gb", "fullest", "num_params", "peak_gb", "ran", "scenario", "sized", "verdict"]

SIZES = Path(__file__).resolve().parents[2] / "scenarios" / "nano-published"

GB = 1e9
NANO = "nemotron-3-nano-30b-a3b"


def scenario(framework: str, mesh: dict[str, int], *, model: Any = NANO, topology: str = "dgx-h100",
             options: dict[str, Any] | None = None, version: str = "auto", **training: Any) -> Scenario:
    """A scenario of one sequence of 2048 tokens a rank, unless told otherwise."""
    sequences = mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1) * training.get("micro_batch_size", 1)
    given = {"seq_len": 2048, "micro_batch_size": 1, "global_batch_size": sequences} | training
    return Scenario.model_validate({
        "name": "claim", "model": model, "framework": framework, "framework_version": version, "topology": topology,
        "mesh": mesh, "training": given, "framework_options": options or {}})


@cache
def _reported(text: str, *, timed: bool) -> Report:
    asked = Scenario.model_validate_json(text)
    return simulate(asked, timed=timed)


def ran(asked: Scenario, *, timed: bool = False) -> Report:
    """Its report; a claim asks for layouts that are legal, so problems are ours."""
    report = _reported(asked.model_dump_json(), timed=timed)
    assert report.status == "ok", report.problems
    return report


def fullest(report: Report) -> RankReport:
    """The rank whose device holds most."""
    return max(report.ranks, key=lambda rank: rank.peak.device_bytes if rank.peak else 0)


def peak_gb(report: Report) -> float:
    """Peak of the device on the fullest rank, in GB."""
    peak = fullest(report).peak
    assert peak is not None
    return peak.device_bytes / GB


def at_rest_gb(report: Report, *what: str) -> float:
    """Bytes at rest of the fullest rank: `params_bytes`, `grads_bytes`, `optimizer_bytes`; all without a name."""
    parts = what or ("params_bytes", "grads_bytes", "optimizer_bytes")
    held: list[int] = [sum(getattr(c, part) for c in rank.at_rest.values() for part in parts) for rank in report.ranks]
    return max(held) / GB


def num_params(model: Any = NANO) -> dict[str, int]:
    """Parameters by component, of one rank that holds all."""
    report = place(scenario("ddp", {"dp_replicate": 1}, model=model))
    return {name: component.num_params for name, component in report.ranks[0].at_rest.items()}


def sized(file: str, *overrides: str) -> tuple[Report, ...]:
    """Reports of a file of `scenarios/nano-published`, its sweep and all."""
    return tuple(ran(asked) for asked in load(SIZES / f"{file}.yaml", overrides))


def verdict(report: Report) -> str:
    """In the words of sizing tables."""
    return "fits" if report.verdict == "fits" else "does not fit"
