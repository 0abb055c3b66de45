"""Questions of claims to the engine: counts, bytes at rest, peaks; GB is 1e9 bytes, as in the documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from claims.claim import UNSURE
from simcore.inputs.loading import load
from simcore.inputs.scenario import Scenario
from simcore.results.report import Peak, RankReport, Report
from simcore.simulate import place, simulate

__all__ = ["FLEX", "GB", "NANO", "at_rest_gb", "fewest", "forget", "fullest", "gained_gb", "held_gb", "holds",
           "kept_gb", "num_params", "peak_gb", "peak_of", "ran", "scenario", "sized", "step_s", "trained", "verdict",
           "visited", "yes"]

SIZES = Path(__file__).resolve().parents[2] / "scenarios" / "nano-published"

GB = 1e9
NANO = "nemotron-3-nano-30b-a3b"
FLEX = {"moe_token_dispatcher_type": "flex"}


def scenario(framework: str, mesh: dict[str, int], *, model: Any = NANO, topology: str = "dgx-h100",
             options: dict[str, Any] | None = None, version: str = "auto", implementation: str = "auto",
             **training: Any) -> Scenario:
    """A scenario of one sequence of 2048 tokens a rank, unless told otherwise."""
    sequences = mesh.get("dp_shard", 1) * mesh.get("dp_replicate", 1) * training.get("micro_batch_size", 1)
    given = {"seq_len": 2048, "micro_batch_size": 1, "global_batch_size": sequences} | training
    return Scenario.model_validate({
        "name": "claim", "model": model, "framework": framework, "framework_version": version, "topology": topology,
        "implementation": implementation, "mesh": mesh, "training": given, "framework_options": options or {}})


@cache
def _reported(text: str, *, timed: bool, detail: bool) -> Report:
    asked = Scenario.model_validate_json(text)
    return simulate(asked, timed=timed, detail=detail)


def forget() -> None:
    """Answers that were given are asked for again."""
    _reported.cache_clear()


def ran(asked: Scenario, *, timed: bool = False, detail: bool = False) -> Report:
    """Its report; a claim asks for layouts that are legal, so problems are ours."""
    report = _reported(asked.model_dump_json(), timed=timed, detail=detail)
    assert report.status == "ok", report.problems
    return report


def fullest(report: Report) -> RankReport:
    """The rank whose device holds most."""
    return max(report.ranks, key=lambda rank: rank.peak.device_bytes if rank.peak else 0)


def peak_of(report: Report) -> Peak:
    """Peak of the fullest rank."""
    peak = fullest(report).peak
    assert peak is not None
    return peak


def peak_gb(report: Report) -> float:
    """Peak of the device on the fullest rank, in GB."""
    return peak_of(report).device_bytes / GB


def held_gb(report: Report, *categories: str) -> float:
    """Bytes of some categories at the peak of the fullest rank."""
    return sum(peak_of(report).by_category.get(name, 0) for name in categories) / GB


def kept_gb(asked: Scenario, part: str, *owners: str) -> float:
    """Activations of one kind of layer at the peak of a job of equal ranks; `owners`: only tensors with these ends."""
    detail = ran(asked, detail=True).detail
    assert detail is not None
    rows = [row for row in detail.classes[0].holders if row.layers == part and row.category == "activation"]
    return sum(row.bytes for row in rows if not owners or row.owner.endswith(owners)) / GB


def at_rest_gb(report: Report, *what: str) -> float:
    """Bytes at rest of the fullest rank: `params_bytes`, `grads_bytes`, `optimizer_bytes`; all without a name."""
    parts = what or ("params_bytes", "grads_bytes", "optimizer_bytes")
    held: list[int] = [sum(getattr(c, part) for c in rank.at_rest.values() for part in parts) for rank in report.ranks]
    return max(held) / GB


def gained_gb(report: Report) -> float:
    """Allocated bytes of the peak that do not rest on the fullest rank."""
    return peak_of(report).allocated_bytes / GB - at_rest_gb(report)


def trained(report: Report, *, everywhere: bool = False) -> int:
    """Trained parameters that the fullest rank owns, or all ranks."""
    ranks = report.ranks if everywhere else (fullest(report),)
    return sum(c.num_trainable_params * (rank.num_ranks if everywhere else 1)
               for rank in ranks for c in rank.at_rest.values())


def num_params(model: Any = NANO) -> dict[str, int]:
    """Parameters by component, of one rank that holds all."""
    report = place(scenario("ddp", {"dp_replicate": 1}, model=model))
    return {name: component.num_params for name, component in report.ranks[0].at_rest.items()}


def visited() -> float:
    """Experts that a token visits: rows that Megatron's dispatcher sends, of the tokens of a rank."""
    asked = scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, method="lora", lora={"rank": 32})
    sent = next(row for row in ran(asked).ranks[0].traffic
                if (row.collective, row.phase, row.dtype) == ("all_to_all", "forward", "bf16"))
    return sent.payload_bytes / sent.calls / (2048 * 2688 * 2)


def step_s(asked: Scenario) -> float:
    """Seconds of a step."""
    time = ran(asked, timed=True).time
    assert time is not None
    return time.step_s


def sized(file: str, *overrides: str) -> tuple[Report, ...]:
    """Reports of a file of `scenarios/nano-published`, its sweep and all."""
    return tuple(ran(asked) for asked in load(SIZES / f"{file}.yaml", overrides))


def _limit(report: Report) -> int:
    assert report.highest_bytes is not None
    assert report.headroom_bytes is not None
    return report.highest_bytes + report.headroom_bytes


def verdict(report: Report) -> str:
    """Verdict in the words of sizing tables; `unsure` where the band of the fullest rank crosses the limit."""
    low, high = peak_of(report).band_bytes
    if str(report.verdict) == UNSURE or low <= _limit(report) < high:
        return UNSURE
    return "fits" if report.verdict == "fits" else "does not fit"


def holds(report: Report) -> bool:
    """True if the peak is at or below the limit, whatever the band says."""
    assert report.highest_bytes is not None
    return report.highest_bytes <= _limit(report)


def fewest(make: Callable[[int], Report], counts: Iterable[int]) -> float:
    """First of the counts, in rising order, whose report holds; 0 if none does."""
    return float(next((count for count in counts if holds(make(count))), 0))


def yes(answer: object) -> str:
    """Word for what is true or not."""
    return "yes" if answer else "no"
