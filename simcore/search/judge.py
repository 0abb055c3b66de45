"""One candidate of a search: refused, too large at rest, or simulated; at first without time, later with it.

Both functions run in worker processes: what they take and return is small and can be pickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from simcore.errors import IllegalLayout, NotYet, RankscopeError
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.placement.job import topology_of
from simcore.results.evidence import EvidenceKind
from simcore.results.report import Report
from simcore.results.verdict import Verdict
from simcore.search.known import Known
from simcore.simulate import answered, simulate
from simcore.simulation.bounds import is_too_large_at_rest, least_step_ns
from simcore.simulation.paging import paged_bytes
from simcore.simulation.random_lengths import is_drawn
from simcore.simulation.simulation import Simulation, placed
from simcore.simulation.step import Request, step_of, written_out
from simcore.simulation.step_memory import is_plain, step_memory
from simcore.timing.throughput import rates, usd_per_million_tokens
from simcore.validation.evidence import evidence_of

__all__ = ["Candidate", "Judged", "Refused", "Sized", "Status", "Timed", "judged", "timed"]

Candidate = Mapping[str, Any]
"""Values of dotted keys that make a layout out of the scenario of a search."""

_NUMBER: Final = re.compile(r"\d+")
_NO_MEMORY: Final = "no memory is simulated"
_TOO_LARGE: Final = "the sizes of this model and batch pass what 64 bits can count"


Status = Literal["illegal", "wrong", "not yet", "bug"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that is not simulated.

    `status`: illegal by the framework's rules, a wrong input, not modelled, or a bug of rankscope.

    `rule`: the framework's rule, or the message without its numbers; `message`: what was said.
    """

    status: Status
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Sized:
    """Memory of a candidate, simulated without time.

    `peak_bytes`, `headroom_bytes`: device memory of the fullest rank. `tokens`: of one step, padding included. `price`:
    USD of a GPU hour. `least_s`: lower bound of the step. `num_gpus`: GPUs that train; `engine_gpus`: further ones, of
    engines that have GPUs of their own.
    """

    verdict: Verdict
    peak_bytes: int
    headroom_bytes: int
    num_gpus: int
    tokens: int
    price: float | None
    least_s: float
    engine_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Timed:
    """Time of a candidate's step, and the evidence for its layout."""

    step_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    usd_per_million_tokens: float | None
    evidence: EvidenceKind


Judged = Refused | Sized | None
"""Answer on a candidate; None: what rests on a rank is more than fits."""


def judged(base: Scenario, candidates: Sequence[Candidate]) -> list[Judged]:
    """Answers on candidates of a search, in order. `base`: the scenario whose keys they set."""
    return [_judged(base, candidate) for candidate in candidates]


def timed(base: Scenario, candidates: Sequence[Candidate]) -> list[Timed | None]:
    """Times of candidates' steps, in order; None where the simulation has no time."""
    return [_timed(changed(base, candidate)) for candidate in candidates]


def _judged(base: Scenario, candidate: Candidate) -> Judged:
    try:
        scenario = changed(base, candidate)
        if scenario.workload != "train" or is_drawn(scenario):
            return _sized(scenario, answered(scenario, timed=False), 0.0)
        return _known_memory(scenario)
    except RankscopeError as error:
        return _refused(error)
    except OverflowError:
        return Refused("wrong", _TOO_LARGE, _TOO_LARGE)
    except Exception as error:  # noqa: BLE001 - a bug of ours costs one layout, not the search
        return Refused("bug", f"{type(error).__name__}: {error}", f"{type(error).__name__}: {error}")


def _refused(error: RankscopeError) -> Refused:
    problem = error.problems[0]
    status: Status = (
        "illegal" if isinstance(error, IllegalLayout) else "not yet" if isinstance(error, NotYet) else "wrong")
    return Refused(status, problem.rule or _NUMBER.sub("#", problem.message), problem.message)


def _memory(legal: Simulation) -> Judged:
    """Answer on a legal layout; None where its simulation is left out."""
    scenario = legal.job.scenario
    simulation = placed(legal)
    if is_too_large_at_rest(simulation):
        return None
    if is_plain(scenario):
        return _sized_step(simulation)
    report = step_of(simulation, Request(timed=False))
    return _sized(scenario, report, least_step_ns(simulation) / 1e9)


def _sized_step(simulation: Simulation) -> Sized:
    """Answer on a placed layout by its memory alone, without a report."""
    scenario = simulation.job.scenario
    with written_out(simulation, timed=False):
        memory, price = step_memory(simulation), simulation.topology.price_per_gpu_hour
        return Sized(memory.verdict, memory.highest_bytes, memory.headroom_bytes, scenario.world_size,
                     _tokens(scenario), None if price is None else price.si, least_step_ns(simulation) / 1e9)


def _sized(scenario: Scenario, report: Report, least_s: float) -> Judged:
    if report.verdict is None or report.highest_bytes is None:
        return Refused("wrong", _NO_MEMORY, _NO_MEMORY)
    price = topology_of(scenario).price_per_gpu_hour
    verdict = report.job_verdict or report.verdict
    return Sized(verdict, report.highest_bytes, report.headroom_bytes or 0, scenario.world_size, _tokens(scenario),
                 None if price is None else price.si, least_s,
                 max(0, sum(rank.num_ranks for rank in report.ranks) - scenario.world_size))


def _tokens(scenario: Scenario) -> int:
    training, mesh = scenario.training, scenario.mesh
    sequences = scenario.num_microbatches * training.micro_batch_size * mesh.dp_replicate * mesh.dp_shard
    return sequences * training.seq_len


def _timed(scenario: Scenario) -> Timed | None:
    if not is_plain(scenario):
        return _of_report(simulate(scenario))
    try:
        return _known_time(scenario)
    except RankscopeError:
        return None


def _time(legal: Simulation) -> Timed | None:
    """Time of a legal layout, without a report; with one where some optimizer states are paged, which takes time."""
    simulation = placed(legal)
    if any(map(paged_bytes, simulation.plans)):
        return _of_report(simulate(simulation.job.scenario))
    job, framework = simulation.job, simulation.framework
    with written_out(simulation, timed=True):
        assert simulation.timing is not None
        rate = rates(job, framework, simulation.routes, simulation.timing)
    return Timed(rate.step_s, rate.tokens_per_s_per_gpu, rate.mfu,
                 usd_per_million_tokens(job, simulation.topology, rate.step_s), evidence_of(job, framework).kind)


def _of_report(report: Report) -> Timed | None:
    time = report.time
    if time is None:
        return None
    cost = time.cost.per_million_tokens if time.cost else None
    kind = report.evidence.kind if report.evidence else "none"
    return Timed(time.step_s, time.tokens_per_s_per_gpu, time.mfu, cost, kind)


_known_memory: Final = Known(_memory)
_known_time: Final = Known(_time)
