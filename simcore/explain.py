"""`rankscope explain`: why a number is what it is, with memory as bars and a line. Imports the engine when called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.explanation import Step
    from simcore.report import MemorySeries, RankReport, Report

__all__ = ["bars", "explain", "spark", "tree"]

_LINE = 72
_BAR = 40
_LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_MOST_CLASSES = 12
_BRANCH, _LAST, _TRUNK = "\u251c\u2500 ", "\u2514\u2500 ", "\u2502  "


class What(StrEnum):
    """Which number."""

    PEAK = "peak"
    TRAINABLE = "trainable"
    STEP = "step"


def explain(
    scenario: str,
    what: Annotated[What, typer.Argument(help="Which number.")] = What.PEAK,
    *,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Whose; omitted: the fullest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the steps as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Walk from a number to what it is made of, by which formula and rule."""
    from simcore.output import print_json

    report = _simulated(scenario, overrides or ())
    step, pictures = _explained(report, what, rank)
    if json:
        print_json([step])
        return
    for line in (*pictures, *tree(step)):
        typer.echo(line)


def _simulated(path: str, overrides: Sequence[str]) -> Report:
    from simcore.loading import load
    from simcore.simulate import simulate

    scenarios = load(path, overrides)
    if len(scenarios) != 1:
        told = f"explains one scenario, this has {len(scenarios)}: choose with --set, such as a swept key's value"
        raise InputError(Problem(path, told))
    return simulate(scenarios[0], detail=True)


def _explained(report: Report, what: What, rank: int | None) -> tuple[Step, list[str]]:
    from simcore.explanation import class_of, explain_peak, explain_step, explain_trainable

    found, detail = class_of(report, rank)
    if what is What.TRAINABLE:
        return explain_trainable(report, found, detail), []
    if what is What.STEP:
        return explain_step(report), []
    pictures = [*bars(report), *([*spark(found.memory), ""] if found.memory else [""])]
    return explain_peak(report, found, detail), pictures


def bars(report: Report) -> Iterator[str]:
    """The device of each class of ranks: at rest, then the rest of the peak, up to the line that is its end."""
    from simcore.units import format_bytes

    shown = [rank for rank in report.ranks if rank.peak][:_MOST_CLASSES]
    capacity = report.capacity_bytes or 0
    whole = max([capacity, *(rank.peak.device_bytes for rank in shown if rank.peak), 1])
    wide = max((len(_name(rank)) for rank in shown), default=0)
    for rank in shown:
        used = rank.peak.device_bytes if rank.peak else 0
        rest, full = (round(_BAR * n / whole) for n in (rank.at_rest_bytes(), used))
        cells = "\u2588" * rest + "\u2593" * (full - rest) + "\u2591" * (_BAR - full)
        end = round(_BAR * capacity / whole)
        share = f" {used / capacity:4.0%}" if capacity else ""
        yield f"{_name(rank):{wide}}  {cells[:end]}\u2502{cells[end:]}  {format_bytes(used):>10}{share}"
    yield f"{'':{wide}}  \u2588 at rest  \u2593 besides at the peak  \u2502 end of the device"


def _name(rank: RankReport) -> str:
    text = ", ".join(rank.ranks)
    return f"ranks {text if len(text) < 24 else f'{text[:22]}..'}"


def spark(memory: MemorySeries) -> list[str]:
    """Memory over the step in one line of blocks, between its lowest and highest moment, and the phases below it."""
    from simcore.units import format_bytes

    totals = [sum(values) for values in zip(*memory.values, strict=True)]
    if not totals:
        return []
    width = min(_LINE, len(totals))
    parts = [range(n * len(totals) // width, (n + 1) * len(totals) // width) for n in range(width)]
    tops = [max(totals[i] for i in part) for part in parts]
    low, high = min(totals), max(totals)
    line = "".join(_LEVELS[min(7, (top - low) * 8 // max(1, high - low))] for top in tops)
    phases = [memory.phases[part.start] for part in parts]
    marks = "".join(name[0].upper() if not n or phases[n - 1] != name else "." for n, name in enumerate(phases))
    told = ", ".join(f"{name[0].upper()} {name}" for name in dict.fromkeys(phases))
    return ["", f"{line}  {format_bytes(low)} to {format_bytes(high)}, in issue order", f"{marks}  {told}"]


def tree(step: Step) -> Iterator[str]:
    """The step, and below it what it is made of."""
    from simcore.table import plain

    tail = "  ".join(filter(None, (f"= {step.how}" if step.how else "", f"[{step.source}]" if step.source else "")))
    yield plain(f"{step.amount}  {step.words}" + (f"  {tail}" if tail else ""))
    for number, inner in enumerate(step.inside, 1):
        is_last = number == len(step.inside)
        first, *others = tree(inner)
        yield (_LAST if is_last else _BRANCH) + first
        yield from (("   " if is_last else _TRUNK) + line for line in others)
