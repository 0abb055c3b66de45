"""Phases of a reinforcement-learning step, for a terminal: begin, duration, memory of device and host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from simcore.cli.sheets.tables import plain, plain_table
from simcore.results.phases import LINKS, PhaseReport
from simcore.results.report import Report
from simcore.units import format_bytes, format_seconds

__all__ = ["phasesheet"]

_OWNERS = 3
"""Owners of a phase that are named."""
_BESIDE = "rl.asynchronous"
"""Assumption of a step in which engines decode while the policy trains."""


def phasesheet(reports: Sequence[Report]) -> list[RenderableType]:
    """Tables of the phases of a reinforcement-learning step on the fullest rank that trains, one a report with phases.

    A row a phase: begin, duration, memory of device and host, bytes that leave the rank by link; the last row has the
    sums of the step. Ranks that only generate have a table of their own. [] if no report has phases.
    """
    return [line for report in reports if report.phases for line in (*_tables(report), "")][:-1]


def _tables(report: Report) -> Iterator[RenderableType]:
    generating = report.generating_rank
    if generating is None:
        yield from _table(report, report.phases, "the fullest rank")
        return
    if trained := report.trained_rank:
        yield from _table(report, report.phases, f"ranks {', '.join(trained.ranks)}, which train")
    yield ""
    yield from _table(report, generating.phases, f"ranks {', '.join(generating.ranks)}, which generate")


def _table(report: Report, phases: Sequence[PhaseReport], where: str) -> Iterator[RenderableType]:
    highest, sent = max(phases, key=lambda phase: phase.device_bytes), Counter[str]()
    for phase in phases:
        sent.update(phase.sent_bytes)
    links = [name for name in LINKS if sent[name]]
    table = plain_table("phase", "begins", "takes", "device", "host", *(f"sent, {name}" for name in links),
                        "highest when", "who is on the device", left=("highest when", "who is on the device"))
    for phase in phases:
        table.add_row(phase.phase, format_seconds(phase.start_s), format_seconds(phase.seconds),
                      format_bytes(phase.device_bytes) + _mark(phase), format_bytes(phase.host_bytes),
                      *(_size(phase.sent_bytes, name) for name in links), plain(phase.event), _owners(phase.by_owner),
                      style="bold" if phase is highest else None)
    table.add_row("step", "", format_seconds(sum(phase.seconds for phase in phases)), "", "",
                  *(_size(sent, name) for name in links), "", "")
    yield Text(plain(f"{report.name}: phases of a step on {where}; {highest.phase} sets the peak"))
    if any(one.what == _BESIDE for one in report.assumptions):
        yield Text("engines decode beside the policy; generation is what the policy then still waits for")
    yield table


def _size(sent: Mapping[str, int], link: str) -> str:
    return format_bytes(sent[link]) if sent.get(link) else ""


def _mark(phase: PhaseReport) -> str:
    return {"fits": "", "unsure": " unsure", "oom": " OOM"}[phase.device_verdict]


def _owners(by_owner: Mapping[str, int]) -> str:
    largest = sorted(by_owner.items(), key=lambda item: -item[1])[:_OWNERS]
    return plain(", ".join(f"{name} {format_bytes(size)}" for name, size in largest))
