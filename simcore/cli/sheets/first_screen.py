"""First screen of a run: verdict in a line, one table that fits the terminal, why, what to do, deciding defaults.

A single scenario has its verdict as the first line, and its table has no name. Columns that do not fit are left out,
the least important first; `rankscope run --details` shows all of them, as `simcore.cli.sheets.summary` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap
from textwrap import wrap
from typing import Final

from rich.cells import cell_len
from rich.console import RenderableType
from rich.style import Style
from rich.text import Text

from simcore.cli.sheets.columns import named
from simcore.cli.sheets.grid import GAP, Grid
from simcore.cli.sheets.summary import STYLE, Tally, columns_by_heading, evidence_line, unsure_line, verdict
from simcore.cli.sheets.tables import fitted, plain, setting
from simcore.frameworks.idle_options import IDLE
from simcore.results.report import Peak, RankReport, Report
from simcore.results.settings import DISPATCHER, chosen_dispatcher
from simcore.units import format_bytes, format_seconds

__all__ = ["first_screen"]

_OWNERS: Final = 3
"""Categories that the reason for a peak names."""
_NAME: Final = 60
"""Characters of a scenario's name in one line of the table, at most."""
_SHARED: Final = ("framework", "layout", "GPUs", "method")
"""Columns that are left out where several scenarios are alike in them; a line below the table has them then."""
_ORDER: Final = ("framework", "layout", "GPUs", "method", "at rest", "verdict", "peak", "capacity", "fill", "peak at",
                 "step", "tokens/s", "MFU", "USD per M", "all-gather", "red.-scatter", "other sent")
"""Columns from left to right, by the first words of their headings."""
_IMPORTANT: Final = ("verdict", "peak", "fill", "step", "layout", "tokens/s", "framework", "GPUs", "method", "MFU",
                     "USD per M", "at rest", "capacity", "peak at", "all-gather", "red.-scatter", "other sent")
_DECIDING: Final = {
    "training.precision.params": "parameters", "training.optimizer.master": "master parameters", "mesh.etp": "etp",
    "training.loss": "loss"}
"""Defaults that decide memory most often, with short names; besides these the token dispatcher."""


_NOTED: Final = ("model", "cuda graphs", "gathered 4-bit weights", "experts gathered in replays", "trained sequences")
"""Assumptions that have a line of their own."""


def first_screen(reports: Sequence[Report], width: int, tally: Tally | None = None) -> list[RenderableType]:
    """Lines and one table of at most `width` characters about simulated reports; of one also its cost.

    `tally`: counts of all, where `reports` are only the best of them.
    """
    single = reports[0] if len(reports) == 1 and tally is None else None
    styles = [Style.parse(STYLE[verdict(report)]) for report in reports]
    shown: list[RenderableType] = [_headline(single, styles[0]), ""] if single else []
    grid, shared = _table(reports, styles, width, is_named=single is None)
    shown.append(grid)
    if shared:
        shown.append(Text(shared))
    if single:
        shown += [Text(line) for line in ("", *_why(single, width), *_remedy(single), *_cost(single), *_noted(single))]
    else:
        shown += (tally or Tally(reports)).lines()
        shown += [line for line in (unsure_line(reports),) if line]
    evidence = evidence_line(reports)
    below = [*_defaults(reports, width), *wrap(str(evidence or ""), width, subsequent_indent="  ")]
    return fitted([*shown, *map(Text, below)], width)


def _headline(report: Report, style: Style) -> Text:
    """Verdict of one report with its peak, the limit, and the range of measured errors where it is unsure."""
    text = Text(f"{plain(report.name)}: ").append(verdict(report), style)
    used, capacity = report.highest_bytes, report.capacity_bytes
    if used is None or not capacity:
        return text
    text.append(f", {format_bytes(used)} of {format_bytes(capacity)} ({used / capacity:.0%})")
    if report.job_verdict != report.verdict:
        text.append(f" in a step, but {report.job_verdict} in {' and '.join(report.worse_phases)}", style)
    if report.verdict == "unsure" and report.band_bytes:
        low, high = report.band_bytes
        text.append(f", by measured runs {format_bytes(low)} to {format_bytes(high)}")
    return text


def _table(reports: Sequence[Report], styles: Sequence[Style], width: int, *, is_named: bool) -> tuple[Grid, str]:
    """The table, and a line with what all rows of several have in common."""
    columns = columns_by_heading(reports)
    filled = {name: columns[name].filled(reports) for name in _ORDER if name in columns}
    texts = {name: {" ".join(cell) for cell in filled[name].cells[1:]} for name in _SHARED if name in filled}
    alike = {name: min(cells) for name, cells in texts.items() if len(reports) > 1 and len(cells) == 1}
    first = [] if not is_named else [named(reports, min(_NAME, max(26, width // 4)))]
    used = sum(column.width + GAP for column in first)
    chosen = set[str]()
    for name in _IMPORTANT:
        if name in filled and name not in alike and used + filled[name].width <= width:
            chosen.add(name)
            used += filled[name].width + GAP
    columns_shown = [*first, *(filled[name] for name in filled if name in chosen)]
    shared = ", ".join(f"{name} {text}" for name, text in alike.items() if text)
    return Grid(columns_shown, styles), f"all: {shared}" if shared else ""


def _why(report: Report, width: int) -> Iterator[str]:
    """Line with the place of the peak, and its largest categories as far as there is room.

    Where engines generate on GPUs that do not train, a second line has the others: their fullest ranks and their peak.
    An engine that does not start comes first.
    """
    if report.serving and report.serving.refusal:
        yield plain(f"why: the engine does not start: {report.serving.refusal}")
    rank = report.peak_rank
    if rank is None or rank.peak is None:
        return
    yield _reason("peak" if report.serving and report.serving.refusal else "why", rank.peak, width)
    others = [one for one in report.ranks if one.peak and bool(one.at_rest) != bool(rank.at_rest)]
    if not (report.phases and others):
        return
    other = max(others, key=_highest)
    if other.peak:
        name = f"ranks {','.join(other.ranks)}, which {'train' if other.at_rest else 'generate'}"
        yield _reason(f"{name}, {format_bytes(other.peak.device_bytes)}", other.peak, width)


def _highest(rank: RankReport) -> int:
    return rank.peak.device_bytes if rank.peak else 0


def _reason(begin: str, peak: Peak, width: int) -> str:
    """Place of a peak and its largest categories, as far as there is room."""
    largest = sorted(peak.by_category.items(), key=lambda item: -item[1])[:_OWNERS]
    place = plain(peak.layer or peak.event)
    at = peak.phase if place == peak.phase else f"{peak.phase}, {place}"
    line = f"{begin}: {plain(at)}"
    for number, (name, size) in enumerate(largest):
        part = f"{', ' if number else ': '}{plain(name)} {format_bytes(size)}"
        line += part if number == 0 or cell_len(line + part) <= width else ""
    return line


def _remedy(report: Report) -> Iterator[str]:
    """Line with the first advice; its further ones are listed below the screen."""
    if report.advice:
        best = report.advice[0]
        time = "" if best.step_s is None else f", step {format_seconds(best.step_s)}"
        keys = " ".join(starmap(setting, best.changes.items()))
        yield plain(f"try: {keys} ({best.verdict}, {format_bytes(best.peak_bytes)}{time})")


def _cost(report: Report) -> Iterator[str]:
    """Line with the price of a step, of a million tokens, and of the run where its length is given."""
    cost = report.time.cost if report.time else None
    if cost is None or (cost.per_step is None and cost.run_s is None):
        return
    words = ["no price"] if cost.per_step is None or cost.per_million_tokens is None else [
        f"{_usd(cost.per_step)} a step, {_usd(cost.per_million_tokens)} a million tokens"]
    if cost.run_s is not None and cost.gpu_hours is not None:
        price = "" if cost.per_run is None else f" {_usd(cost.per_run)},"
        words.append(f"the run{price} {cost.run_s / 3600:,.3g} h, {cost.gpu_hours:,.3g} GPU hours")
    yield f"cost: {'; '.join(words)}"


def _noted(report: Report) -> Iterator[str]:
    """Lines about memory that surprises, a version of torch in which the job stops (`_NOTED`), and idle options."""
    yield from (plain(f"{one.what}: {one.value}") for one in report.assumptions
                if one.what in _NOTED or one.value == IDLE)


def _usd(amount: float) -> str:
    return f"{amount:,.2f} USD" if amount >= 1 else f"{amount:.3g} USD"


def _defaults(reports: Sequence[Report], width: int) -> Iterator[str]:
    """Line with the defaults that decide memory, each with its values in the reports."""
    values: dict[str, dict[str, None]] = {}
    for report in reports:
        if dispatcher := chosen_dispatcher(report):
            values.setdefault(DISPATCHER, {})[dispatcher] = None
        for assumption in report.assumptions:
            short = _DECIDING.get(assumption.what)
            if assumption.kind == "default" and short:
                values.setdefault(short, {})[assumption.value] = None
    words = [plain(f"{name} {'|'.join(texts)}") for name, texts in values.items()]
    while words and cell_len(line := f"defaults: {', '.join(words)}") > width:
        words.pop()
    if words:
        yield line
