"""The report of a step with phases: the training step's, plus memory, host memory and time of the other phases.

For figures it has memory over the step: the journal's entries, with the training step's series inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from simcore.errors import InputError, Problem
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.results.detail import MemorySeries
from simcore.results.phases import PhaseReport
from simcore.results.report import Assumption, Host, HostPhase, Owner, Peak, RankReport, Report, TrafficRow
from simcore.results.time import StepTime
from simcore.results.verdict import Verdict, verdict_of
from simcore.rl.step.journal import Entry, Journal, Moment
from simcore.rl.step.phases import ENGINE, FIXED, POLICY, REFIT, REWARD, category_name, is_outside
from simcore.rl.step.traffic import by_phase
from simcore.rl.time import Batch, whole_step
from simcore.simulation.simulation import Simulation
from simcore.validation.evidence import evidence_of

__all__ = ["Laid", "of_one_rank", "phase_report", "phase_series"]

_LOOSE: Final = "fragmentation"
"""Category that is reserved and not allocated; a series omits it, like memory outside the allocator."""
_Sample = tuple[int, str, Counter[str]]
"""(ns since the step began, phase, bytes by category)."""


@dataclass(frozen=True, eq=False)
class Laid:
    """One step with phases, simulated, before it is put into a report.

    `trained`: report of its training step; `journals`, `traffic`: memory and time of each class of `trained.ranks`, in
    that order, and what it sends; `simulation`: of its forward passes; `batch`: what the step trains on; `engine`,
    `engine_traffic`: of each of the `num_engine_ranks` ranks that only generate, None if engines share GPUs with
    training. `source`: of the order of phases.
    """

    scenario: Scenario
    trained: Report
    journals: tuple[Journal, ...]
    traffic: tuple[tuple[TrafficRow, ...], ...]
    simulation: Simulation
    batch: Batch
    engine: Journal | None = None
    num_engine_ranks: int = 0
    engine_traffic: tuple[TrafficRow, ...] = ()
    source: str = "NeMo RL 7ea279ab, see simcore/rl/step/phases.py"

    @property
    def limit(self) -> int:
        """Bytes of a device that may be used: its capacity times `limits.max_fill`."""
        return int((self.trained.capacity_bytes or 0) * self.scenario.limits.max_fill)

    def verdict(self, moment: Moment) -> Verdict:
        """Verdict on device memory at one moment."""
        return verdict_of([_band(moment, self.simulation)], self.limit)


def phase_report(laid: Laid, further: Sequence[Assumption]) -> Report:
    """Report of a step with phases: that of its training step, with memory and time of all phases in it.

    Its field `phases` is of the fullest class of ranks that train; ranks that only generate are a further class, the
    last. `further`: assumptions that are added.
    """
    ranks = [_rank(rank, journal, sent, laid)
             for rank, journal, sent in zip(laid.trained.ranks, laid.journals, laid.traffic, strict=True)]
    fullest = max(range(len(ranks)), key=lambda i: (_device(ranks[i]), -i))
    if laid.engine is not None:
        ranks.append(_engine_rank(laid.engine, laid))
    worst = max(map(_device, ranks))
    return laid.trained.model_copy(update={
        "name": laid.scenario.name, "scenario": laid.scenario.normalised(), "ranks": tuple(ranks),
        "verdict": verdict_of((rank.peak.band_bytes for rank in ranks if rank.peak), laid.limit),
        "headroom_bytes": laid.limit - worst, "evidence": evidence_of(*prepare(laid.scenario)),
        "assumptions": (*laid.trained.assumptions, *further),
        "phases": ranks[fullest].phases, "time": _time(laid), "host": _host(laid)})


def of_one_rank(report: Report, rank: int, max_fill: float) -> Report:
    """Report of a step with phases for one rank alone: its memory, verdict, phases and traffic; time is the job's.

    `max_fill`: the part of a device that may be used. InputError if the report has no such rank.
    """
    found = next((one for one in report.ranks if one.has_rank(rank)), None)
    if found is None:
        last = sum(one.num_ranks for one in report.ranks) - 1
        raise InputError(Problem("--rank", f"expected a rank from 0 to {last}, got {rank}"))
    limit, mine = int((report.capacity_bytes or 0) * max_fill), found.model_copy(update={
        "ranks": (str(rank),), "num_ranks": 1})
    return report.model_copy(update={
        "ranks": (mine,), "phases": found.phases, "headroom_bytes": limit - _device(found),
        "verdict": verdict_of((found.peak.band_bytes,), limit) if found.peak else None})


def _sorted(sent: Sequence[TrafficRow]) -> tuple[TrafficRow, ...]:
    return tuple(sorted(sent, key=lambda row: (row.collective, row.axis, row.phase, row.dtype)))


def _device(rank: RankReport) -> int:
    return rank.peak.device_bytes if rank.peak else 0


# ---- ranks -----------------------------------------------------------------------------------------------------------
def _rank(rank: RankReport, journal: Journal, sent: Sequence[TrafficRow], laid: Laid) -> RankReport:
    assert rank.peak is not None
    highest = _highest(journal)
    inside = {phase.phase: _allocated(phase) for phase in journal.phases if phase.phase != "training"}
    training = next(phase for phase in journal.phases if phase.phase == "training")
    more = _allocated(training) - rank.peak.allocated_bytes
    by_phase = {name: size + more for name, size in rank.peak.by_phase.items()} | inside
    host = max(phase.bytes_on("host") for phase in journal.phases)
    at_highest = _peak(highest, laid.simulation)
    peak = _with_neighbour(rank.peak, at_highest) if highest.phase == "training" else at_highest
    series = None if rank.memory is None else phase_series(journal, rank.memory)
    return rank.model_copy(update={
        "peak": peak.model_copy(update={"by_phase": by_phase, "host_bytes": host}), "memory": series,
        "traffic": _sorted(sent), "phases": _phases(journal, sent, laid)})


def _highest(journal: Journal) -> Moment:
    return max(journal.phases, key=lambda phase: phase.bytes_on("device"))


def _by_category(moment: Moment) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for (_, category), size in moment.device.items():
        sizes[category_name(category)] += size
    return sizes


def _allocated(moment: Moment) -> int:
    """Bytes inside allocators, without fragmentation."""
    return sum(size for (_, category), size in moment.device.items()
               if category != _LOOSE and not is_outside(category))


def _with_neighbour(peak: Peak, combined: Peak) -> Peak:
    """Peak of the training step, plus the other owners on the device, which `combined` counts too."""
    more = combined.device_bytes - peak.device_bytes
    inside = combined.allocated_bytes - peak.allocated_bytes
    return peak.model_copy(update={
        "allocated_bytes": combined.allocated_bytes, "reserved_bytes": peak.reserved_bytes + inside,
        "device_bytes": combined.device_bytes, "by_category": combined.by_category, "outside": combined.outside,
        "top": combined.top, "reserved_band_bytes": _moved(peak.reserved_band_bytes, inside),
        "band_bytes": _moved(peak.band_bytes, more)})


def _moved(ends: tuple[int, int], by: int) -> tuple[int, int]:
    return ends[0] + by, ends[1] + by


def _band(moment: Moment, simulation: Simulation) -> tuple[int, int]:
    """Range of device memory by measured runs of the policy's class of layouts; the engine's bytes have no range.

    The range is laid around the bytes of the phase, whose own fragmentation may be rounded up in other places.
    """
    policy = sum(size for (owner, category), size in moment.device.items()
                 if owner not in (ENGINE, REFIT, REWARD) and category != _LOOSE and not is_outside(category))
    needed, device = simulation.needed(policy), moment.bytes_on("device")
    return device - (needed.middle - needed.low), device + needed.high - needed.middle


def _peak(moment: Moment, simulation: Simulation) -> Peak:
    device, categories, outside = moment.bytes_on("device"), Counter[str](), Counter[str]()
    for (_, name), size in moment.device.items():
        (outside if is_outside(name) else categories)[category_name(name)] += size
    loose = categories.pop(_LOOSE, 0)
    allocated = sum(categories.values())
    top = sorted(((owner, name, size) for (owner, name), size in moment.device.items()
                  if name != _LOOSE and not is_outside(name)), key=lambda row: (-row[2], row[:2]))
    return Peak(
        allocated_bytes=allocated, reserved_bytes=allocated + loose, device_bytes=device, phase=moment.phase,
        event=moment.event, layer="", microbatch=0, by_category=dict(categories.most_common()), by_phase={},
        top=tuple(Owner(owner=f"{owner}/{name}", category=name, bytes=size) for owner, name, size in top[:12]),
        reserved_band_bytes=(allocated, allocated + loose), outside=dict(outside), band_bytes=_band(moment, simulation))


def _engine_rank(journal: Journal, laid: Laid) -> RankReport:
    highest, first, count = _highest(journal), laid.scenario.world_size, laid.num_engine_ranks
    by_phase = {phase.phase: _allocated(phase) for phase in journal.phases}
    peak = _peak(highest, laid.simulation).model_copy(update={"by_phase": by_phase})
    last = first + count - 1
    return RankReport(
        ranks=(f"{first}-{last}" if count > 1 else str(first),), num_ranks=count, coordinates={}, stage=0, at_rest={},
        padding_bytes=0, grads_persist=False, peak=peak, traffic=_sorted(laid.engine_traffic),
        phases=_phases(journal, laid.engine_traffic, laid))


# ---- memory over the step --------------------------------------------------------------------------------------------
def phase_series(journal: Journal, trained: MemorySeries | None) -> MemorySeries:
    """Allocated bytes over a step with phases, by category, for one class of ranks.

    Memory outside the allocator and fragmentation are left out. `trained`: the same over the training step, which
    replaces the journal's training phase; None: the journal alone.
    """
    samples = list(_samples(journal, trained))
    names = sorted({name for _, _, sizes in samples for name in sizes})
    return MemorySeries(
        categories=tuple(names), event_index=tuple(range(len(samples))),
        time_s=tuple(ns / 1e9 for ns, _, _ in samples), phases=tuple(phase for _, phase, _ in samples),
        values=tuple(tuple(sizes[name] for _, _, sizes in samples) for name in names),
        layers=("",) * len(samples))


def _samples(journal: Journal, trained: MemorySeries | None) -> Iterator[_Sample]:
    start = 0
    for number, moment in enumerate(journal.phases):
        entries = [entry for entry in journal.entries if entry.phase == number]
        if moment.phase == "training" and trained is not None:
            yield from _training_samples(entries, start, trained)
        else:
            yield from ((start + entry.ns, moment.phase, _allocated_by_category(entry)) for entry in entries)
        start += moment.ns


def _training_samples(entries: list[Entry], start: int, trained: MemorySeries) -> Iterator[_Sample]:
    """Samples of tensors that return first, then the training step's, plus the other owners on the device."""
    ready = min(entry.ns for entry in entries if entry.spike)
    first = next(entry for entry in entries if entry.spike)
    yield from ((start + entry.ns, "training", _allocated_by_category(entry)) for entry in entries
                if entry.ns <= ready and not entry.spike)
    neighbours = Counter({key: size for key, size in first.held.items() if key[0] not in (POLICY, FIXED)})
    others = _allocated_by_category(Entry(entries[0].phase, 0, neighbours, spike=False))
    for at, (time_s, phase) in enumerate(zip(trained.time_s, trained.phases, strict=True)):
        sizes = Counter({name: values[at] for name, values in zip(trained.categories, trained.values, strict=True)})
        yield start + ready + round(time_s * 1e9), phase, sizes + others


def _allocated_by_category(entry: Entry) -> Counter[str]:
    """Bytes inside allocators by category, without fragmentation."""
    sizes: Counter[str] = Counter()
    for (_, category), size in entry.held.items():
        if category != _LOOSE and not is_outside(category):
            sizes[category] += size
    return sizes


# ---- phases, clock, hosts --------------------------------------------------------------------------------------------
def _phases(journal: Journal, traffic: Sequence[TrafficRow], laid: Laid) -> tuple[PhaseReport, ...]:
    rows, start, sent = [], 0, by_phase(traffic)
    for moment in journal.phases:
        device = moment.bytes_on("device")
        rows.append(PhaseReport.model_validate({
            "phase": moment.phase, "start_s": start / 1e9, "seconds": moment.ns / 1e9, "device_bytes": device,
            "host_bytes": moment.bytes_on("host"), "event": moment.event,
            "by_category": dict(_by_category(moment).most_common()), "by_owner": _by_owner(moment.device),
            "host_by_owner": _by_owner(moment.host), "device_verdict": laid.verdict(moment),
            "parts": {what: ns / 1e9 for what, ns in moment.parts.items()}, "sent_bytes": sent.get(moment.phase, {})}))
        start += moment.ns
    return tuple(rows)


def _by_owner(held: Counter[tuple[str, str]]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for (owner, _), size in held.items():
        sizes[owner] += size
    return dict(sizes.most_common())


def _slowest(laid: Laid) -> Journal:
    return max(laid.journals, key=lambda journal: sum(phase.ns for phase in journal.phases))


def _time(laid: Laid) -> StepTime | None:
    """Time of the training step extended to all phases."""
    time, size = laid.trained.time, laid.scenario.world_size
    return None if time is None else whole_step(time, _slowest(laid).phases, laid.batch, laid.scenario.training,
                                                laid.simulation.topology, (size, size + laid.num_engine_ranks))


def _host(laid: Laid) -> Host | None:
    """Host memory: reading and writing unchanged, and a row for each phase in the place of the step's."""
    host = laid.trained.host
    if host is None:
        return None
    fullest = max(laid.journals, key=lambda journal: max(phase.bytes_on("host") for phase in journal.phases))
    read = tuple(phase for phase in host.phases if phase.phase == "load")
    written = tuple(phase for phase in host.phases if phase.phase == "save")
    return host.model_copy(update={"phases": (*read, *(_host_phase(m, host, laid) for m in fullest.phases), *written)})


def _host_phase(moment: Moment, host: Host, laid: Laid) -> HostPhase:
    size, device = moment.bytes_on("host") * host.ranks_per_host, moment.bytes_on("device")
    verdict: Literal["fits", "oom"] = "fits" if size <= host.capacity_bytes else "oom"
    owners = {name: num_bytes * host.ranks_per_host for name, num_bytes in _by_owner(moment.host).items()}
    return HostPhase.model_validate({
        "phase": moment.phase, "host_bytes": size, "device_bytes": device, "host_verdict": verdict,
        "device_verdict": laid.verdict(moment), "by_owner": owners,
        "source": laid.source})
