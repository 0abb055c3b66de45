"""Tables that a person reads at a glance, on a terminal or through a pipe.

A verdict is always a word, colour only repeats it. Names come from files, so nothing in them is markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from simcore.compare import Comparison, Row, worst_rank
from simcore.report import Peak, RankReport, Report
from simcore.units import format_bytes, format_seconds

__all__ = ["comparison", "console", "placement", "plain", "summary", "verdict"]

_STYLE = {
    "fits": "green",
    "legal": "green",
    "placed": "green",
    "illegal": "yellow",
    "OOM": "bold red",
    "error": "bold red",
}
_BAR = 8
_ONE_TABLE = 190
"""Terminals narrower than this get memory and traffic in two tables, one below the other."""


def console(stream: IO[str]) -> Console:
    """For `stream`; a pipe or file has no width, so there lines are as long as the tables want."""
    width = None if stream.isatty() else 240
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def plain(text: str) -> str:
    """Without control characters: a name from a file must not steer the terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def verdict(report: Report) -> str:
    """One word: fits, OOM, illegal, error; placed or legal when nothing more was asked."""
    if report.status != "ok":
        return report.status
    if report.verdict:
        return {"fits": "fits", "oom": "OOM"}[report.verdict]
    return "placed" if report.ranks else "legal"


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[Report], str | Text]
    justify: JustifyMethod = "right"


def summary(reports: Sequence[Report], width: int) -> list[Table]:
    """One line a scenario: one table where `width` characters allow it, else memory, then traffic and time."""
    if not any(r.ranks for r in reports):
        return [_table(_WHAT, reports)]
    if not any(r.peak_rank for r in reports):
        return [_table((*_WHAT, _AT_REST), reports)]
    if width >= _ONE_TABLE:
        return [_table((*_WHAT, _AT_REST, *_MEMORY, *_STEP), reports)]
    return [_table((*_WHAT, _AT_REST, *_MEMORY), reports), _table((_WHAT[0], *_STEP), reports)]


def _table(columns: Sequence[_Column], reports: Sequence[Report]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify=column.justify, overflow="fold", no_wrap=column.justify == "right")
    for report in reports:
        table.add_row(*(column.cell(report) for column in columns))
    return table


def _name(report: Report) -> Text:
    return Text(plain(report.name))


def _framework(report: Report) -> Text:
    framework = report.scenario.get("framework", "")
    return Text(plain(str(framework.get("name", "") if isinstance(framework, dict) else framework)))


def _axis(report: Report, axis: str) -> int:
    mesh = report.scenario.get("mesh")
    size = mesh.get(axis, 1) if isinstance(mesh, dict) else 1
    return size if isinstance(size, int) else 1


def _layout(report: Report) -> str:
    """`pp/dp/cp/tp/ep`; dp of several replicas is `replicate x shard`; empty where no mesh could be read."""
    if "mesh" not in report.scenario:
        return ""
    replicate, shard = _axis(report, "dp_replicate"), _axis(report, "dp_shard")
    dp = f"{replicate}x{shard}" if replicate > 1 and shard > 1 else str(replicate * shard)
    return "/".join((str(_axis(report, "pp")), dp, *(str(_axis(report, axis)) for axis in ("cp", "tp", "ep"))))


def _num_gpus(report: Report) -> str:
    if "mesh" not in report.scenario:
        return ""
    product = 1
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp"):
        product *= _axis(report, axis)
    return f"{product:,}"


def _verdict(report: Report) -> Text:
    word = verdict(report)
    return Text(word, style=_STYLE[word])


def _at_rest(report: Report) -> str:
    rank = worst_rank(report)
    return format_bytes(rank.at_rest_bytes() + rank.padding_bytes) if rank else ""


def _of_peak(show: Callable[[Peak], str]) -> Callable[[Report], str]:
    """A cell about the peak of the worst rank; empty when there is none."""

    def cell(report: Report) -> str:
        rank = report.peak_rank
        return show(rank.peak) if rank and rank.peak else ""

    return cell


def _peak_at(peak: Peak) -> str:
    return plain(f"{peak.phase}, {peak.layer or peak.event}")


def _capacity(report: Report) -> str:
    return format_bytes(report.capacity_bytes) if report.capacity_bytes else ""


def _fill(report: Report) -> Text:
    """A bar and the share of the capacity; the bar is full at 100 %, the number goes on."""
    rank = report.peak_rank
    if not (rank and rank.peak and report.capacity_bytes):
        return Text("")
    share = rank.peak.device_bytes / report.capacity_bytes
    full = min(_BAR, round(share * _BAR))
    return Text("█" * full + "░" * (_BAR - full) + f" {share:4.0%}", style=_STYLE[verdict(report)])


def _traffic(*collectives: str) -> Callable[[Report], str]:
    """Bytes that leave the worst rank in one step; without names, all that is not named by the other columns."""

    def cell(report: Report) -> str:
        rank = worst_rank(report)
        if rank is None or rank.peak is None:
            return ""
        named = collectives or ("all_gather", "reduce_scatter")
        return format_bytes(sum(t.wire_bytes for t in rank.traffic if (t.collective in named) == bool(collectives)))

    return cell


def _step(report: Report) -> str:
    return format_seconds(report.time.step_s) if report.time else ""


def _tokens(report: Report) -> str:
    return f"{report.time.tokens_per_s_per_gpu:,.0f}" if report.time else ""


_WHAT = (
    _Column("scenario", _name, "left"),
    _Column("framework", _framework, "left"),
    _Column("pp/dp/cp/tp/ep", _layout),
    _Column("GPUs", _num_gpus),
    _Column("verdict", _verdict, "left"),
)
_AT_REST = _Column("at rest", _at_rest)
_MEMORY = (
    _Column("peak", _of_peak(lambda peak: format_bytes(peak.device_bytes))),
    _Column("capacity", _capacity),
    _Column("fill", _fill, "left"),
    _Column("peak at", _of_peak(_peak_at), "left"),
)
_STEP = (
    _Column("all-gather", _traffic("all_gather")),
    _Column("reduce-scatter", _traffic("reduce_scatter")),
    _Column("other traffic", _traffic()),
    _Column("step", _step),
    _Column("tokens/s/GPU", _tokens),
)


def placement(report: Report) -> list[RenderableType]:
    """What lies on each class of ranks, component by component."""
    shown: list[RenderableType] = []
    for rank in report.ranks:
        shown += [_rank_line(report, rank), _rank_table(rank)]
    return shown


def _rank_line(report: Report, rank: RankReport) -> Text:
    where = " ".join(f"{axis}={value}" for axis, value in rank.coordinates.items())
    about = " (a flat shard's split over components is apportioned)" if rank.apportioned else ""
    ranks = ", ".join(rank.ranks)
    return Text(plain(f"{report.name}: ranks {ranks} ({rank.num_ranks:,} alike), stage {rank.stage}, {where}{about}"))


def _rank_table(rank: RankReport) -> Table:
    table = _plain_table("component", "parameters", "trainable", "weights", "gradients", "optimizer", "together")
    for name, at in rank.at_rest.items():
        sizes = (at.params_bytes, at.grads_bytes, at.optimizer_bytes)
        counts = (f"{at.num_params:,}", f"{at.num_trainable_params:,}")
        table.add_row(plain(name), *counts, *map(format_bytes, (*sizes, sum(sizes))))
    table.add_section()
    table.add_row("padding", *[""] * 5, format_bytes(rank.padding_bytes))
    table.add_row("total", *_totals(rank), format_bytes(rank.at_rest_bytes() + rank.padding_bytes), style="bold")
    return table


def _totals(rank: RankReport) -> list[str]:
    parts = rank.at_rest.values()
    counts = (sum(p.num_params for p in parts), sum(p.num_trainable_params for p in parts))
    sizes = (
        sum(p.params_bytes for p in parts),
        sum(p.grads_bytes for p in parts),
        sum(p.optimizer_bytes for p in parts),
    )
    return [f"{count:,}" for count in counts] + [format_bytes(size) for size in sizes]


def comparison(both: Comparison) -> Table:
    """Two results side by side, difference as bytes or seconds and as a share of the first."""
    table = _plain_table("on the worst rank", both.a, both.b, "difference", "%")
    _section(table, "at rest", both.at_rest, format_bytes)
    _section(table, "at the peak", both.peak, format_bytes)
    _section(table, "traffic per step", both.traffic, format_bytes)
    _section(table, "time", both.time, format_seconds)
    return table


def _section(table: Table, heading: str, rows: Sequence[Row], show: Callable[[float], str]) -> None:
    table.add_row(Text(heading, style="bold"))
    for row in rows:
        percent = "" if row.percent is None else f"{row.percent:+.1f}"
        sign = "+" if row.difference > 0 else ""
        table.add_row(f"  {plain(row.what)}", show(row.a), show(row.b), sign + show(row.difference), percent)
    table.add_section()


def _plain_table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(plain(first)))
    for heading in others:
        table.add_column(Text(plain(heading)), justify="right")
    return table
