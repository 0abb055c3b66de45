"""End of a batch's command: its results printed, its findings told, and its exit code.

Outcomes are read one after the other, once to judge them all, and again where they are printed, because those of a
folder stay on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import typer

from simcore.batch.gate import IN_TABLES, Finding, Gate, gates, merged
from simcore.cli import output
from simcore.cli.sheets.summary import Tally
from simcore.tables.choice import BEST, REPORTS

if TYPE_CHECKING:
    from simcore.batch.run import Outcome
    from simcore.cli.session import Ran
    from simcore.results.report import Report
    from simcore.tables.choice import Choice, Key

__all__ = ["QUIET", "show"]

QUIET: Final = 20
"""Results of a folder up to which a terminal shows all of them, where a user makes no choice."""


@dataclass(slots=True)
class _Judged:
    """Result of one reading of all outcomes. `keys`: sorting keys of those that may be shown, with their indices."""

    tally: Tally = field(default_factory=Tally)
    findings: list[Finding] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    keys: list[tuple[Key, int]] = field(default_factory=list)
    code: int = 0


def show(ran: Ran, *, json: bool, asked: Sequence[Gate] | None = None, report_format: str | None = None,
         summary: bool = True, details: bool = False, choice: Choice[Report] | None = None, told: bool = False) -> int:
    """Prints everything once; returns the highest exit code of the scenarios, or the code that ended the batch early.

    `choice`: results to print; None: all, of a folder with more than 20 the best. Standard error does not repeat what
    standard output tells: tables, or with `told` the findings.
    """
    tabled = IN_TABLES if summary and not json and report_format is None else frozenset[str]()
    tabled |= {"refused"} if tabled and len(ran.outcomes) > 1 else set()
    chosen = choice or (BEST if ran.in_folder and len(ran.outcomes) > QUIET and not json else REPORTS.choice())
    judged = _judged(ran.outcomes, asked or gates(), chosen, tabled, names=report_format == "junit")
    if report_format is not None:
        typer.echo(output.ci_text(report_format, judged.names, judged.findings), nl=False)
    elif json:
        _print_json(ran.outcomes, chosen, judged)
    elif summary:
        _print_tables(ran.outcomes, chosen, judged, details=details)
    findings = [] if told else sorted(judged.findings, key=lambda finding: -finding.code)
    output.complain([*merged(findings), *ran.problems])
    if ran.ended:
        kept = f"; {ran.where} has them, and the same run goes on from there" if ran.where else ""
        output.say(f"{'stopped' if ran.problems else 'interrupted'}, {len(ran.outcomes)} results kept{kept}")
    return ran.ended or judged.code


def _judged(outcomes: Sequence[Outcome], checks: Sequence[Gate], choice: Choice[Report], tabled: frozenset[str], *,
            names: bool) -> _Judged:
    """Judges all outcomes. `tabled`: kinds of findings that tables tell, of which only the exit code counts."""
    judged = _Judged()
    for index, outcome in enumerate(outcomes):
        judged.tally.add(outcome.report)
        if names:
            judged.names.append(outcome.report.name)
        judged.code = max(judged.code, outcome.code)
        for finding in (finding for check in checks for finding in check(outcome)):
            judged.code = max(judged.code, finding.code)
            if finding.kind not in tabled:
                judged.findings.append(finding)
        if (key := choice.key(outcome.report)) is not None:
            judged.keys.append((key, index))
    return judged


def _chosen(outcomes: Sequence[Outcome], choice: Choice[Report], judged: _Judged) -> Iterator[Report]:
    return (outcomes[index].report for index in choice.chosen(judged.keys))


def _print_json(outcomes: Sequence[Outcome], choice: Choice[Report], judged: _Judged) -> None:
    reports = _chosen(outcomes, choice, judged)
    if choice.columns:
        output.print_rows({one.column.name: one.value(report) for one in choice.columns} for report in reports)
    else:
        output.print_json(reports)


def _print_tables(outcomes: Sequence[Outcome], choice: Choice[Report], judged: _Judged, *, details: bool) -> None:
    reports = [*_chosen(outcomes, choice, judged)]
    is_part = len(reports) < len(outcomes)
    if is_part and reports and choice is BEST:
        output.print_line(f"the {len(reports)} best of {len(outcomes):,} by tokens/s per GPU; others: --sort, --top, "
                          "--fits, --columns, or `rankscope query`")
    if choice.columns:
        output.print_columns(reports, choice.columns)
        output.print_tally(judged.tally)
    elif reports:
        output.print_summary(reports, details=details, tally=judged.tally if is_part else None)
    else:
        output.print_tally(judged.tally)
