"""Summary of scenarios, one line each: layout, verdict, peak, traffic, time of a step.

A verdict is always a word, colour only repeats it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from simcore.cli.sheets.columns import Column, grids
from simcore.cli.sheets.tables import plain
from simcore.results.evidence import COUNTED
from simcore.results.report import Peak, Report
from simcore.results.settings import engine_gpus
from simcore.units import format_seconds, in_gib

__all__ = ["STYLE", "Tally", "columns_by_heading", "evidence_line", "summary", "unsure_line", "verdict"]

STYLE = {
    "fits": "green",
    "legal": "green",
    "placed": "green",
    "unsure": "yellow",
    "illegal": "yellow",
    "OOM": "bold red",
    "error": "bold red",
}
_BAR = 8
"""Characters of a full bar."""
_PLACE = 24
"""Characters of a module path at most."""
_REASONS = 5
"""Reasons for having no verdict that are listed."""


def verdict(report: Report) -> str:
    """One word for a report: fits, unsure, OOM, illegal, error; placed or legal if nothing more was computed."""
    if report.status != "ok":
        return report.status
    if report.verdict:
        return {"fits": "fits", "oom": "OOM", "unsure": "unsure"}[report.verdict]
    return "placed" if report.ranks else "legal"


class Tally:
    """Counts of verdicts and of reasons for having none, of many reports."""

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self.words, self.reasons = Counter[str](), Counter[tuple[str, str]]()
        for report in reports:
            self.add(report)

    def add(self, report: Report) -> None:
        """Counts one report."""
        word = verdict(report)
        self.words[word] += 1
        if report.status != "ok" and report.problems:
            first = report.problems[0]
            rule = f" [{first.rule}]" if first.rule else ""
            self.reasons[word, f"{first.message.removeprefix(f'{word}: ')}{rule}"] += 1

    def lines(self) -> list[Text]:
        """Counts of verdicts, such as `14 scenarios: 12 fits, 2 illegal`, then the most frequent reasons."""
        counts = ", ".join(f"{self.words[word]:,} {word}" for word in STYLE if self.words[word])
        total = self.words.total()
        rows = [Text(f"{total:,} scenario{'' if total == 1 else 's'}: {counts}")]
        for (word, reason), times in self.reasons.most_common(_REASONS):
            rows.append(Text(plain(f"  {times:,} {word}: {reason}")))
        if len(self.reasons) > _REASONS:
            rows.append(Text(f"  {len(self.reasons) - _REASONS:,} more reasons: --columns name,problems has all"))
        return rows


def summary(reports: Sequence[Report], width: int, tally: Tally | None = None) -> list[RenderableType]:
    """Table with one row a report: layout, verdict, peak, traffic, step time; then counts of verdicts if several.

    Memory and traffic are of the worst class of ranks. Columns that do not fit into `width` characters follow in
    another table below; last come the names of those whose band of measured errors contains the limit. `tally`: counts
    of all, where `reports` are only the best of them.
    """
    styles = [Style.parse(STYLE[verdict(report)]) for report in reports]
    shown: list[RenderableType] = [*grids(_columns(reports), reports, styles, width)]
    if tally or len(reports) > 1:
        shown.append(Group(*(tally or Tally(reports)).lines()))
    shown += [line for line in (unsure_line(reports), evidence_line(reports)) if line]
    return [part for table in shown for part in (table, "")][:-1]


def unsure_line(reports: Sequence[Report]) -> Text | None:
    """Line that names the first three scenarios with an unsure verdict; None without one."""
    unsure = [plain(report.name) for report in reports if report.verdict == "unsure"]
    names = ", ".join(unsure[:3]) + (f" and {len(unsure) - 3:,} more" if len(unsure) > 3 else "")
    return Text(f"unsure (measured errors of such layouts reach across the limit): {names}") if unsure else None


def evidence_line(reports: Sequence[Report]) -> Text | None:
    """Line on known runs of one report's layout, or how many of several have which; None if there is none."""
    found = [report.evidence for report in reports if report.evidence and report.peak_rank]
    if not found:
        return None
    if len(reports) == 1:
        return Text(f"evidence: {plain(found[0].sentence(has_phases=bool(reports[0].phases)))}")
    kinds = Counter(one.kind for one in found)
    return Text("evidence: " + "; ".join(f"{kinds[kind]:,} {words}" for kind, words in COUNTED.items() if kinds[kind]))


def columns_by_heading(reports: Sequence[Report]) -> dict[str, Column]:
    """Columns of the summary that have values, and more of cost and rate, by the first words of their headings."""
    columns = (*_columns(reports), *_RATES) if any(report.time for report in reports) else _columns(reports)
    return {column.heading.split("\n", maxsplit=1)[0]: column for column in columns} | (
        {_FULL.heading: _FULL} if any(report.peak_rank for report in reports) else {})


def _columns(reports: Sequence[Report]) -> tuple[Column, ...]:
    """Columns that have values."""
    if any(r.peak_rank for r in reports):
        return (*_WHAT, _AT_REST, *_MEMORY, _VERDICT, *_STEP)
    return (*_WHAT, _AT_REST, _VERDICT) if any(r.ranks for r in reports) else (*_WHAT, _VERDICT)


def _framework(report: Report) -> str:
    framework = report.scenario.get("framework", "")
    return plain(str(framework.get("name", "") if isinstance(framework, dict) else framework))


def _axis(report: Report, axis: str) -> int:
    mesh = report.scenario.get("mesh")
    size = mesh.get(axis, 1) if isinstance(mesh, dict) else 1
    return size if isinstance(size, int) else 1


def _layout(report: Report) -> str:
    """Axes of more than one rank, such as `pp2 dp2x4 ep8`: dp is `replicas x shards`, or one size if the other is 1."""
    if "mesh" not in report.scenario:
        return ""
    replicate, shard = _axis(report, "dp_replicate"), _axis(report, "dp_shard")
    sizes = {axis: _axis(report, axis) for axis in ("pp", "dp", "cp", "tp", "ep", "etp")} | {"dp": replicate * shard}
    words = {axis: f"{axis}{size}" for axis, size in sizes.items() if size > 1}
    if replicate > 1 and shard > 1:
        words["dp"] = f"dp{replicate}x{shard}"
    return " ".join(words.values()) or "1 rank"


def _num_gpus(report: Report) -> str:
    """Product of the mesh, and the GPUs of engines that generate beside it."""
    if "mesh" not in report.scenario:
        return ""
    product = 1
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp"):
        product *= _axis(report, axis)
    return f"{max(product + engine_gpus(report), sum(rank.num_ranks for rank in report.ranks)):,}"


def _method(report: Report) -> str:
    training = report.scenario.get("training")
    workload, method = str(report.scenario.get("workload", "train")), ""
    if isinstance(training, dict):
        method = plain(str(training.get("method", "")))
    return {"train": method, "serve": workload}.get(workload, f"{workload} {method}")


def _at_rest(report: Report) -> str:
    rank = report.trained_rank
    return in_gib(rank.at_rest_bytes() + rank.padding_bytes) if rank else ""


def _of_peak(show: Callable[[Peak], str]) -> Callable[[Report], str]:
    """Function for a cell about the peak of the worst rank; empty without a peak."""

    def cell(report: Report) -> str:
        rank = report.peak_rank
        return show(rank.peak) if rank and rank.peak else ""

    return cell


def _peak_at(peak: Peak) -> str:
    """Place of the peak, such as `backward, layers.51`; long module paths are cut at the front."""
    place = plain(peak.layer or peak.event)
    if place == peak.phase:
        return plain(place)
    return plain(f"{peak.phase}, {place if len(place) <= _PLACE else '...' + place[3 - _PLACE :]}")


def _capacity(report: Report) -> str:
    return in_gib(report.capacity_bytes) if report.capacity_bytes else ""


def _fill(report: Report) -> str:
    """A bar and the share of the capacity; the bar is full at 100 %, the number may exceed it."""
    rank = report.peak_rank
    if not (rank and rank.peak and report.capacity_bytes):
        return ""
    share = rank.peak.device_bytes / report.capacity_bytes
    full = min(_BAR, round(share * _BAR))
    return "█" * full + "░" * (_BAR - full) + f" {share:4.0%}"


def _traffic(*collectives: str) -> Callable[[Report], str]:
    """Function for a cell of bytes that leave a rank in one step; without names, all other collectives.

    Of the fullest rank that trains, if any does.
    """

    def cell(report: Report) -> str:
        rank = report.trained_rank
        if rank is None or rank.peak is None:
            return ""
        named = collectives or ("all_gather", "reduce_scatter")
        return in_gib(sum(t.wire_bytes for t in rank.traffic if (t.collective in named) == bool(collectives)))

    return cell


def _step(report: Report) -> str:
    return format_seconds(report.time.step_s) if report.time else ""


def _tokens(report: Report) -> str:
    return f"{report.time.tokens_per_s_per_gpu:,.0f}" if report.time else ""


_WHAT = (
    Column("framework", _framework, "left"),
    Column("layout", _layout, "left"),
    Column("GPUs", _num_gpus),
    Column("method", _method, "left"),
)
_VERDICT = Column("verdict", verdict, "left", coloured=True)
_AT_REST = Column("at rest\nGiB", _at_rest)
_MEMORY = (
    Column("peak\nGiB", _of_peak(lambda peak: in_gib(peak.device_bytes))),
    Column("capacity\nGiB", _capacity),
    Column("fill", _fill, "left", coloured=True),
)
_STEP = (
    Column("peak at", _of_peak(_peak_at), "left"),
    Column("all-gather\nGiB/step", _traffic("all_gather")),
    Column("red.-scatter\nGiB/step", _traffic("reduce_scatter")),
    Column("other sent\nGiB/step", _traffic()),
    Column("step", _step),
    Column("tokens/s\nper GPU", _tokens),
)
_FULL = Column("fill", lambda report: f"{report.highest_bytes / report.capacity_bytes:.0%}"
               if report.highest_bytes is not None and report.capacity_bytes else "", coloured=True)
_RATES = (
    Column("MFU", lambda report: f"{report.time.mfu:.1%}" if report.time else ""),
    Column("USD per M\ntokens", lambda report: f"{report.time.cost.per_million_tokens:,.3g}" if report.time
           and report.time.cost and report.time.cost.per_million_tokens is not None else ""),
)
