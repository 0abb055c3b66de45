"""`rankscope explain`: why a number is what it is, with memory as bars and a line. Imports the engine when called."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.cli.memory import Bars, Spark
    from simcore.results.report import Report
    from simcore.simulation.explanation import Step

__all__ = ["explain", "tree"]

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
    from simcore.cli.output import print_json, print_shown

    report = _simulated(scenario, overrides or ())
    step, pictures = _explained(report, what, rank)
    if json:
        print_json([step])
        return
    if pictures:
        print_shown(*pictures)
    sys.stdout.write("".join(f"{line}\n" for line in tree(step)))  # typer.echo would write UTF-8 on any terminal


def _simulated(path: str, overrides: Sequence[str]) -> Report:
    from simcore.inputs.loading import load
    from simcore.simulate import simulate

    scenarios = load(path, overrides)
    if len(scenarios) != 1:
        told = f"explains one scenario, this has {len(scenarios)}: --set sweep=null, and --set for what it sweeps"
        raise InputError(Problem(path, told))
    found = simulate(scenarios[0], detail=True)
    if found.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in found.problems])
    if found.detail is None:
        told = f"{found.scenario['workload']}: has no single step to explain; expected train"
        raise InputError(Problem(scenarios[0].where("workload"), told))
    return found


def _explained(report: Report, what: What, rank: int | None) -> tuple[Step, list[Bars | Spark | str]]:
    from simcore.cli.memory import Bars, Spark
    from simcore.simulation.explanation import class_of, explain_peak, explain_step, explain_trainable

    found, detail = class_of(report, rank)
    if what is What.TRAINABLE:
        return explain_trainable(report, found, detail), []
    if what is What.STEP:
        return explain_step(report), []
    pictures: list[Bars | Spark | str] = [Bars(report), ""]
    if found.memory:
        pictures += [Spark(found.memory), ""]
    return explain_peak(report, found, detail), pictures


def tree(step: Step) -> Iterator[str]:
    """The step, and below it what it is made of."""
    from simcore.cli.tables import plain

    tail = "  ".join(filter(None, (f"= {step.how}" if step.how else "", f"[{step.source}]" if step.source else "")))
    yield plain(f"{step.amount}  {step.words}" + (f"  {tail}" if tail else ""))
    for number, inner in enumerate(step.inside, 1):
        is_last = number == len(step.inside)
        first, *others = tree(inner)
        yield (_LAST if is_last else _BRANCH) + first
        yield from (("   " if is_last else _TRUNK) + line for line in others)
