"""A comparison of two or more results: verdict, memory, traffic, time and cost of the worst rank of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from simcore.results.evidence import EvidenceKind
from simcore.results.frame import Value
from simcore.results.phases import PHASE_PARTS
from simcore.results.report import RankReport, Report
from simcore.results.settings import Setting, asked_differently, differing_defaults
from simcore.results.time import Cost, StepTime
from simcore.units import format_bytes, format_seconds

__all__ = ["Comparison", "Kept", "LinkRow", "RateRow", "Row", "Section", "Unit", "as_rows", "compare", "format_value",
           "part_rows", "phase_rows", "room_rows", "traffic_rows", "worst_rank"]

Unit = Literal["bytes", "seconds", "share", "USD", "number"]
_Values = Mapping[str, int | float]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Frozen):
    """One quantity in result `a`, in result `b`, and in all `more` results, in their order.

    `difference` is b - a, `percent` 100 (b - a) / a, None if a is 0. A result without that quantity counts as zero.
    """

    what: str
    a: int | float
    b: int | float
    difference: int | float
    percent: float | None
    more: tuple[int | float, ...] = ()

    @property
    def values(self) -> tuple[int | float, ...]:
        """Values of all results, in their order."""
        return (self.a, self.b, *self.more)

    def percent_of(self, place: int) -> float | None:
        """Difference of the result at `place` (0 is the first) to the first, in percent of the first; None if 0."""
        return 100 * (self.values[place] - self.a) / self.a if self.a else None


class LinkRow(Row):
    """Bytes that leave the worst rank in a step by one collective on one mesh axis over one kind of link.

    `link`: nvlink (inside a node, PCIe included), network (between nodes) or host (copies to and from the host).
    """

    collective: str
    axis: str
    link: Literal["nvlink", "network", "host"]


class RateRow(Row):
    """One rate or price, whose `unit` says how to read it; a result without it has the value 0."""

    unit: Unit


class Kept(_Frozen):
    """One setting that a result keeps although `wanted`, the value of another, was asked for all (`compare --like`).

    `place`: of the result among those compared, from 0. `key`: dotted, or `dispatcher`. `value`: what it keeps.
    `reason`: the refusal of its framework.
    """

    place: int
    key: str
    value: str
    wanted: str
    reason: str

    def __str__(self) -> str:
        """One line without the name of the result."""
        return f"keeps {self.key} {self.value}, not {self.wanted}: {self.reason}"


class Section(NamedTuple):
    """Rows of one field of a comparison, named as the field; `unit` is that of all rows but those of rates."""

    name: str
    unit: Unit
    rows: tuple[Row, ...]


class Comparison(_Frozen):
    """Results side by side, each by its worst rank (`worst_rank`); `a`, `b` and `more` are their names.

    `verdicts`: the verdict of each, or its status if it has none. `evidence`: kind of each result's evidence, "" if it
    has none (`results.evidence`). `num_gpus`: 0 for a result without ranks. Rows of
    `room` (capacity of the device, and what the fullest rank leaves of it), `at_rest` (by component), `peak` (by
    category), `traffic` (bytes that leave the rank in a step) and `links` (the same by link) are in bytes, those of
    `time` and `parts` (activities of the device, which add up to the step) in seconds, those of `rates` in their unit.
    `conventions`: how each MFU counts FLOPs. `defaults`: settings in which they differ because a framework chose;
    `asked`: all others in which the scenarios differ. `kept`: what remains different although it was asked to be alike.
    """

    a: str
    b: str
    at_rest: tuple[Row, ...]
    peak: tuple[Row, ...]
    traffic: tuple[Row, ...]
    time: tuple[Row, ...]
    more: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    evidence: tuple[EvidenceKind | Literal[""], ...] = ()
    num_gpus: tuple[int, ...] = ()
    room: tuple[Row, ...] = ()
    links: tuple[LinkRow, ...] = ()
    parts: tuple[Row, ...] = ()
    rates: tuple[RateRow, ...] = ()
    conventions: tuple[str, ...] = ()
    defaults: tuple[Setting, ...] = ()
    asked: tuple[Setting, ...] = ()
    kept: tuple[Kept, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all results, in their order."""
        return (self.a, self.b, *self.more)

    @property
    def sections(self) -> tuple[Section, ...]:
        """All rows, section by section: device, peak, at rest, traffic, traffic by link, time, its parts, rates."""
        return (Section("room", "bytes", self.room), Section("peak", "bytes", self.peak),
                Section("at_rest", "bytes", self.at_rest), Section("traffic", "bytes", self.traffic),
                Section("links", "bytes", self.links), Section("time", "seconds", self.time),
                Section("parts", "seconds", self.parts), Section("rates", "number", self.rates))

    @property
    def is_equal(self) -> bool:
        """True if no number, verdict or setting differs."""
        rows = (row for section in self.sections for row in section.rows)
        return not (self.defaults or self.asked or self.kept) and len(set(self.verdicts)) < 2 and all(
            value == row.a for row in rows for value in row.values)

    def __repr__(self) -> str:
        """One line with device memory and step time."""
        device = [f"device {_arrow(row, format_bytes)}" for row in self.peak if row.what == "device"]
        step = [f"step {_arrow(row, format_seconds)}" for row in self.time if row.what == "step"]
        names = " -> ".join(map(repr, self.names))
        return f"<Comparison {names}: {', '.join((*device, *step)) or 'nothing to compare'}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """HTML that a notebook shows; see `Report`."""
        from viz.notebook.comparison import comparison_html

        return comparison_html(self)


def _arrow(row: Row, show: Callable[[float], str]) -> str:
    return " -> ".join(map(show, row.values))


def compare(a: Report, b: Report, *more: Report, kept: Sequence[Kept] = ()) -> Comparison:
    """Comparison of two or more results; a result without ranks or time counts as zero there.

    `kept`: settings that some of them keep although all were to have those of one.
    """
    reports = (a, b, *more)
    ranks = [worst_rank(report) for report in reports]
    trained = [report.trained_rank for report in reports]
    at_rest, traffic = [_at_rest(rank) for rank in trained], [_traffic(rank) for rank in trained]
    times = [report.time for report in reports]
    return Comparison(
        a=a.name, b=b.name, more=tuple(report.name for report in more),
        verdicts=tuple(_verdict(report) for report in reports), kept=tuple(kept),
        evidence=tuple(report.evidence.kind if report.evidence else "" for report in reports),
        num_gpus=tuple(sum(rank.num_ranks for rank in report.ranks) for report in reports),
        room=_rows([_room(report) for report in reports]),
        at_rest=_rows(at_rest) + _total(at_rest),
        peak=_rows([_peak(rank) for rank in ranks]) + _rows([_device(rank) for rank in ranks]),
        traffic=_rows(traffic) + _total(traffic), links=_links(ranks),
        time=_rows([_time(time) for time in times]),
        parts=_rows([dict(time.parts) if time else {} for time in times]),
        rates=_rates(reports), conventions=tuple(time.convention if time else "" for time in times),
        defaults=differing_defaults(reports), asked=asked_differently(reports))


_PHASES = ("step", "forward", "backward", "optimizer")
_PARTS: Mapping[str, str] = {"forward": "forward kernels", "backward": "backward kernels",
                             "optimizer": "optimizer kernels", "communication": "exposed communication"}


def phase_rows(both: Comparison) -> tuple[Row, ...]:
    """Rows of `time` that `part_rows` do not repeat: the step and its phases; all of a comparison without parts."""
    return tuple(row for row in both.time if row.what in _PHASES) if both.parts else both.time


def part_rows(both: Comparison) -> tuple[Row, ...]:
    """Rows of `parts`; those that have the name of a phase are named differently here."""
    return tuple(row.model_copy(update={"what": _PARTS.get(row.what, row.what)}) for row in both.parts)


def room_rows(both: Comparison) -> tuple[Row, ...]:
    """Rows of the device: its capacity, what the worst rank needs of it and leaves, what torch reserves, cache too."""
    rows = {row.what: row for row in (*both.room, *both.peak)}
    names = {"capacity": "capacity", "device": "needed at the peak", "left": "left", "reserved": "reserved, cache too"}
    return tuple(rows[what].model_copy(update={"what": name}) for what, name in names.items() if what in rows)


def traffic_rows(both: Comparison) -> tuple[Row, ...]:
    """Rows of bytes that leave the worst rank in a step: each collective, below it its axes and links, then sums.

    Names of rows below another begin with a space. Sums: over each kind of link, and of everything. Those of `traffic`,
    without links, for a comparison that has no others.
    """
    return tuple(_by_link_rows(both.links)) or both.traffic


def _by_link_rows(rows: Sequence[LinkRow]) -> Iterator[Row]:
    for collective, group in groupby(rows, lambda row: row.collective):
        of_one = list(group)
        yield _summed(collective, of_one)
        yield from (_summed(f" {row.axis} {_LINKS[row.link]}", [row]) for row in of_one)
    for link, words in _LINKS.items():
        if over := [row for row in rows if row.link == link]:
            yield _summed(f"all over {words}", over)
    if rows:
        yield _summed("total", rows)


_LINKS: Mapping[str, str] = {"nvlink": "NVLink", "network": "network", "host": "host"}


def _summed(what: str, rows: Sequence[Row]) -> Row:
    return _row(what, [sum(values) for values in zip(*(row.values for row in rows), strict=True)])


def as_rows(both: Comparison) -> list[tuple[Value, ...]]:
    """Rows for a spreadsheet: names of columns, then a quantity each: section, quantity, unit, value of each result.

    Values are numbers in base units (B, s). Verdicts and evidence, which come first, are text; so are settings that a
    result keeps, which come last, each in its result's column.
    """
    rows: list[tuple[Value, ...]] = [
        ("section", "what", "unit", *both.names), ("verdict", "verdict", "", *both.verdicts),
        ("verdict", "GPUs", "", *both.num_gpus)]
    if any(both.evidence):
        rows.append(("verdict", "evidence", "", *both.evidence))
    for section in both.sections:
        rows += [(section.name, row.what, _UNITS[row.unit if isinstance(row, RateRow) else section.unit], *row.values)
                 for row in section.rows]
    rows += [("kept", one.key, "", *(str(one) if place == one.place else "" for place in range(len(both.names))))
             for one in both.kept]
    return rows


def format_value(value: float, unit: Unit) -> str:
    """Text of a value in its unit; a dash for zero, which also stands for a result without the quantity."""
    if not value:
        return "-"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


_UNITS: Mapping[Unit, str] = {"bytes": "B", "seconds": "s", "share": "", "USD": "USD", "number": ""}


def worst_rank(report: Report) -> RankReport | None:
    """Class of ranks with the highest device memory; without peaks with most bytes at rest.

    None without ranks.
    """
    return report.peak_rank or max(report.ranks, key=RankReport.at_rest_bytes, default=None)


def _verdict(report: Report) -> str:
    return (report.verdict or "") if report.status == "ok" else report.status


def _room(report: Report) -> dict[str, int]:
    if report.capacity_bytes is None or report.headroom_bytes is None:
        return {}
    return {"capacity": report.capacity_bytes, "left": report.headroom_bytes}


def _at_rest(rank: RankReport | None) -> dict[str, int]:
    if rank is None:
        return {}
    return {name: c.params_bytes + c.grads_bytes + c.optimizer_bytes for name, c in rank.at_rest.items()}


def _peak(rank: RankReport | None) -> dict[str, int]:
    return dict(rank.peak.by_category) if rank and rank.peak else {}


def _device(rank: RankReport | None) -> dict[str, int]:
    """Sum of the categories, then with the allocator's cache, then with memory outside the allocator."""
    if rank is None or rank.peak is None:
        return {}
    peak = rank.peak
    return {"allocated": peak.allocated_bytes, "reserved": peak.reserved_bytes, "device": peak.device_bytes}


def _traffic(rank: RankReport | None) -> dict[str, int]:
    """Bytes that leave the rank in one step, by collective and axis."""
    wire: Counter[str] = Counter()
    for row in rank.traffic if rank else ():
        wire[f"{row.collective} {row.axis}"] += row.wire_bytes
    return dict(wire)


_Link = tuple[str, str, Literal["nvlink", "network", "host"]]


def _links(ranks: Sequence[RankReport | None]) -> tuple[LinkRow, ...]:
    """Rows by collective, axis and link, without those that are zero in every result."""
    sent = [_by_link(rank) for rank in ranks]
    found = dict.fromkeys(key for of_one in sent for key in of_one)
    ordered = sorted(found, key=lambda key: (*key[:2], list(_LINKS).index(key[2])))
    rows = ((key, _row(" ".join(key), [of_one[key] for of_one in sent])) for key in ordered)
    return tuple(LinkRow(collective=key[0], axis=key[1], link=key[2], **row.model_dump())
                 for key, row in rows if any(row.values))


def _by_link(rank: RankReport | None) -> Counter[_Link]:
    """Bytes by (collective, axis, link); what crosses neither NVLink nor the network is copied to or from the host."""
    sent: Counter[_Link] = Counter()
    for row in rank.traffic if rank else ():
        sent[row.collective, row.axis, "nvlink"] += row.nvlink_bytes
        sent[row.collective, row.axis, "network"] += row.network_bytes
        sent[row.collective, row.axis, "host"] += row.wire_bytes - row.nvlink_bytes - row.network_bytes
    return sent


def _time(time: StepTime | None) -> dict[str, float]:
    if time is None:
        return {}
    return {
        "step": time.step_s,
        "forward": time.forward_s,
        "backward": time.backward_s,
        "optimizer": time.optimizer_s,
        "exposed communication": time.exposed_communication_s,
        **{part: time.parts.get(part, 0.0) for part in ("contention", "bubble", "host")},
        **{part: time.parts[part] for part in PHASE_PARTS if part in time.parts},
    }


def _rates(reports: Sequence[Report]) -> tuple[RateRow, ...]:
    """Rows of rates and prices that at least one result has."""
    found = [_rates_of(report) for report in reports]
    keys = dict.fromkeys(key for of_one in found for key in of_one)
    return tuple(RateRow(unit=unit, **_row(what, [of_one.get((what, unit), 0) for of_one in found]).model_dump())
                 for what, unit in keys)


def _rates_of(report: Report) -> dict[tuple[str, Unit], float]:
    time = report.time
    rates: dict[tuple[str, Unit], float | None] = {}
    if time is not None:
        rates = {("tokens/s per GPU", "number"): time.tokens_per_s_per_gpu, ("MFU", "share"): time.mfu,
                 ("model TFLOP/s per GPU", "number"): time.model_tflops_per_gpu, **_prices(time.cost or Cost())}
    if report.serving is not None:
        rates |= {("tokens in the cache", "number"): report.serving.cache_tokens,
                  ("full-length sequences", "number"): report.serving.concurrency,
                  ("decoded tokens/s", "number"): max((d.tokens_per_s for d in report.serving.decode), default=None)}
    return {key: value for key, value in rates.items() if value is not None}


def _prices(cost: Cost) -> dict[tuple[str, Unit], float | None]:
    return {("USD per step", "USD"): cost.per_step, ("USD per M tokens", "USD"): cost.per_million_tokens,
            ("USD per GPU hour", "USD"): cost.price_per_gpu_hour, ("GPU hours of the run", "number"): cost.gpu_hours,
            ("USD for the run", "USD"): cost.per_run}


def _total(results: Sequence[Mapping[str, int]]) -> tuple[Row, ...]:
    return _rows([{"total": sum(values.values())} for values in results])


def _rows(results: Sequence[_Values]) -> tuple[Row, ...]:
    """Rows in the order of the first result, then those that only later ones have."""
    return tuple(_row(what, [values.get(what, 0) for values in results])
                 for what in dict.fromkeys(what for values in results for what in values))


def _row(what: str, values: Sequence[int | float]) -> Row:
    a, b, *more = values
    return Row(what=what, a=a, b=b, difference=b - a, percent=100 * (b - a) / a if a else None, more=tuple(more))
