"""Where the time of a step goes, for a terminal: one line a scenario, and for one scenario alone what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.style import Style
from rich.text import Text

from simcore.cli.columns import Column, grids
from simcore.cli.tables import plain, plain_table
from simcore.results.report import Report, StepTime
from simcore.results.time import Cost
from simcore.units import format_seconds

__all__ = ["timesheet"]

_MOST = 8
"""Kernels and collectives of one scenario that are shown."""


def timesheet(reports: Sequence[Report], width: int) -> list[RenderableType]:
    """The table, of scenarios whose time is known; of a single one, its communication and kernels below."""
    timed = [report for report in reports if report.time is not None and report.time.parts]
    if not timed:
        return []
    shown: list[RenderableType] = [*grids(_COLUMNS, timed, [Style()] * len(timed), width)]
    if len(reports) == 1 and timed[0].time is not None:
        shown += _details(timed[0].time)
    return shown


def _of(show: Callable[[StepTime], str]) -> Callable[[Report], str]:
    return lambda report: "" if report.time is None else plain(show(report.time))


def _share(*parts: str) -> Callable[[Report], str]:
    """Of the step, in percent; what is there is never shown as none."""

    def cell(time: StepTime) -> str:
        spent = sum(time.parts.get(part, 0.0) for part in parts)
        return f"{spent / time.step_s:.1%}" if spent else "-"

    return _of(cell)


def _limit(time: StepTime) -> str:
    found = time.roofline
    return f"{format_seconds(found.limit_s)} {found.limit}" if found else ""


def _money(amount: Callable[[Cost], float | None]) -> Callable[[StepTime], str]:
    """Never 0 where nobody named a price."""
    def cell(time: StepTime) -> str:
        found = None if time.cost is None else amount(time.cost)
        return "no price" if found is None else f"{found:,.3g}"

    return cell


_COLUMNS = (
    Column("step", _of(lambda time: format_seconds(time.step_s))),
    Column("forward", _share("forward")),
    Column("backward", _share("backward")),
    Column("optimizer", _share("optimizer")),
    Column("conten-\ntion", _share("contention")),
    Column("exposed\ncomm.", _share("communication")),
    Column("bubble", _share("bubble")),
    Column("host", _share("host")),
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
    yield from ("", _kernels(time), Text(plain(_told(time))))


def _communication(time: StepTime) -> RenderableType:
    """The collectives that are waited for longest."""
    table = plain_table("communication of a step", "axis", "over", "calls", "alone", "exposed", "hidden",
                        left=("axis", "over"))
    for one in sorted(time.communication, key=lambda one: (-one.exposed_s, -one.alone_s))[:_MOST]:
        table.add_row(one.collective, plain(one.axis), one.link, f"{one.calls:,}",
                      *map(format_seconds, (one.alone_s, one.exposed_s, one.hidden_s)))
    return table


def _kernels(time: StepTime) -> RenderableType:
    """The kernels that take longest together; those that a machine of any speed takes no time for are left out."""
    table = plain_table("kernels of a step", "forward", "backward", "optimizer", "of the step", "TFLOP/s", "GB/s")
    every = [(one.forward_s + one.backward_s + one.optimizer_s, one) for one in time.kernels]
    for seconds, one in sorted((each for each in every if each[0]), key=lambda each: -each[0])[:_MOST]:
        table.add_row(f"{one.kernel} {one.dtype}",
                      *(format_seconds(part) if part else "" for part in (one.forward_s, one.backward_s,
                                                                         one.optimizer_s)),
                      f"{seconds / time.step_s:.1%}", f"{one.flops / seconds / 1e12:,.1f}",
                      f"{one.bytes_moved / seconds / 1e9:,.0f}")
    return table


def _told(time: StepTime) -> str:
    """What the numbers are of."""
    first = f"of ranks {', '.join(time.ranks)}, which end last; MFU of {time.peak_tflops or 0:,.1f} TFLOP/s dense"
    found = time.cost
    if found is None:
        return f"{first} {time.peak_dtype}"
    run = f"; the run: {found.run_s / 3600:,.1f} h, {found.gpu_hours:,.0f} GPU hours" if found.run_s is not None and (
        found.gpu_hours is not None) else ""
    if found.per_run is not None:
        run += f", {found.per_run:,.2f} USD"
    price = found.note or f"{found.price_per_gpu_hour:,.2f} USD per GPU hour ({found.price_date})"
    return f"{first} {time.peak_dtype}; {price}{run}"
