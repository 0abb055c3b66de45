"""Breakdown of a step's time, for a terminal: one line a scenario, and for a single scenario its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.style import Style
from rich.text import Text

from simcore.cli.sheets.columns import Column, grids
from simcore.cli.sheets.tables import plain, plain_table
from simcore.results.report import Report, StepTime
from simcore.results.time import Cost
from simcore.units import format_seconds

__all__ = ["timesheet"]

_MOST = 8
"""Kernels and collectives of one scenario that are shown."""


def timesheet(reports: Sequence[Report], width: int) -> list[RenderableType]:
    """Table of times, one row a report whose step was timed: duration, shares of its parts, limits, cost.

    For a single report its collectives and kernels follow. Columns that do not fit into `width` characters follow in
    another table. [] if no step was timed.
    """
    timed = [report for report in reports if report.time is not None and report.time.parts]
    if not timed:
        return []
    columns = [column for column in _COLUMNS if column.heading not in _PHASES.values()
               or any(column.cell(report) not in ("", "-") for report in timed)]
    shown: list[RenderableType] = [*grids(columns, timed, [Style()] * len(timed), width)]
    if len(reports) == 1 and timed[0].time is not None:
        shown += _details(timed[0].time)
    return shown


def _of(show: Callable[[StepTime], str]) -> Callable[[Report], str]:
    return lambda report: "" if report.time is None else plain(show(report.time))


def _share(*parts: str) -> Callable[[Report], str]:
    """Function for a cell with the parts' share of the step in percent; a small share is never shown as zero."""

    def cell(time: StepTime) -> str:
        spent = sum(time.parts.get(part, 0.0) for part in parts)
        return f"{spent / time.step_s:.1%}" if spent else "-"

    return _of(cell)


def _limit(time: StepTime) -> str:
    roofline = time.roofline
    return f"{format_seconds(roofline.limit_s)} {roofline.limit}" if roofline else ""


def _money(amount: Callable[[Cost], float | None]) -> Callable[[StepTime], str]:
    """Function for a cell with a cost; "no price" without a price, never 0."""
    def cell(time: StepTime) -> str:
        usd = None if time.cost is None else amount(time.cost)
        return "no price" if usd is None else f"{usd:,.3g}"

    return cell


_PHASES: Final = {"refit": "refit", "generation": "gene-\nration", "reward": "reward", "logprob": "log-\nprob.",
                  "reference": "refe-\nrence", "values": "values", "critic": "critic", "host copies": "host\ncopies"}
"""Parts that only a step with phases has, with their headings."""
_COLUMNS = (
    Column("step", _of(lambda time: format_seconds(time.step_s))),
    Column("forward", _share("forward")),
    Column("backward", _share("backward")),
    Column("optimizer", _share("optimizer")),
    Column("conten-\ntion", _share("contention")),
    Column("exposed\ncomm.", _share("communication")),
    Column("bubble", _share("bubble")),
    Column("host", _share("host")),
    *(Column(heading, _share(part)) for part, heading in _PHASES.items()),
    Column("bound by", _of(lambda time: time.roofline.bound.replace("_", " ") if time.roofline else ""), "left"),
    Column("physical\nlimit", _of(_limit), "left"),
    Column("TFLOP/s\nper GPU", _of(lambda time: f"{time.model_tflops_per_gpu:,.1f}")),
    Column("counted as", _of(lambda time: time.convention), "left"),
    Column("MFU", _of(lambda time: f"{time.mfu:.1%}")),
    Column("USD per\nstep", _of(_money(lambda cost: cost.per_step))),
    Column("USD per\nM tokens", _of(_money(lambda cost: cost.per_million_tokens))),
)


def _details(time: StepTime) -> Iterator[RenderableType]:
    if time.communication:
        yield from ("", _communication(time))
    yield from ("", _kernels(time), *_limits(time), Text(plain(_told(time))))


def _communication(time: StepTime) -> RenderableType:
    """Table of the collectives that are waited for longest."""
    table = plain_table("communication of a step", "axis", "over", "calls", "alone", "exposed", "hidden",
                        left=("axis", "over"))
    for row in sorted(time.communication, key=lambda row: (-row.exposed_s, -row.alone_s))[:_MOST]:
        table.add_row(row.collective, plain(row.axis), row.link, f"{row.calls:,}",
                      *map(format_seconds, (row.alone_s, row.exposed_s, row.hidden_s)))
    return table


def _kernels(time: StepTime) -> RenderableType:
    """Table of the kernels that take longest in total; those that take no time are left out."""
    table = plain_table("kernels of a step", "forward", "backward", "optimizer", "of the step", "TFLOP/s", "GB/s")
    every = [(kernel.forward_s + kernel.backward_s + kernel.optimizer_s, kernel) for kernel in time.kernels]
    for seconds, kernel in sorted((each for each in every if each[0]), key=lambda each: -each[0])[:_MOST]:
        table.add_row(f"{kernel.kernel} {kernel.dtype}",
                      *(format_seconds(part) if part else "" for part in (kernel.forward_s, kernel.backward_s,
                                                                         kernel.optimizer_s)),
                      f"{seconds / time.step_s:.1%}", f"{kernel.flops / seconds / 1e12:,.1f}",
                      f"{kernel.bytes_moved / seconds / 1e9:,.0f}")
    return table


def _limits(time: StepTime) -> Iterator[Text]:
    """Line with the least time of each resource by the datasheets, the longest first."""
    limits = time.roofline.limits if time.roofline else {}
    words = [f"{name.replace('_', ' ')} {format_seconds(seconds)}"
             for name, seconds in sorted(limits.items(), key=lambda item: -item[1]) if seconds]
    if words:
        yield Text(plain(f"least time by the datasheets: {', '.join(words)}"))


def _told(time: StepTime) -> str:
    """Line about the ranks, the peak and the price of the numbers above."""
    first = f"of ranks {', '.join(time.ranks)}, which end last; MFU of {time.peak_tflops or 0:,.1f} TFLOP/s dense"
    if time.convention.endswith("(training)"):
        first = f"passes, kernels and communication are those of training; FLOPs too, over the whole step; {first}"
    cost = time.cost
    if cost is None:
        return f"{first} {time.peak_dtype}"
    run = f"; the run: {cost.run_s / 3600:,.1f} h, {cost.gpu_hours:,.0f} GPU hours" if cost.run_s is not None and (
        cost.gpu_hours is not None) else ""
    if cost.per_run is not None:
        run += f", {cost.per_run:,.2f} USD"
    price = cost.note or f"{cost.price_per_gpu_hour:,.2f} USD per GPU hour ({cost.price_date})"
    return f"{first} {time.peak_dtype}; {price}{run}"
