"""`rankscope explain`: steps from a number to its parts, with memory as bars and a line. Imports the engine late."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.cli.recipes import FilesBeside, Gpus, SeqLen, Topology
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.cli.sheets.memory import Bars, Spark
    from simcore.inputs.scenario import Scenario
    from simcore.recipes.imported import Imported
    from simcore.results.report import Report
    from simcore.simulation.explanation import Step

__all__ = ["explain", "tree"]

_BRANCH, _LAST, _TRUNK = "\u251c\u2500 ", "\u2514\u2500 ", "\u2502  "


class What(StrEnum):
    """Choice of the number that `explain` explains: the peak, the trained parameters, or the step's time."""

    PEAK = "peak"
    TRAINABLE = "trainable"
    STEP = "step"


def explain(
    scenario: str,
    what: Annotated[What, typer.Argument(help="Number to explain.")] = What.PEAK,
    *,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Rank to explain; omitted: the fullest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the steps as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    gpus: Gpus = None,
    seq_len: SeqLen = None,
    topology: Topology = "",
    beside: FilesBeside = None,
) -> None:
    """Walk from a number to what it is made of, by which formula and rule.

    SCENARIO has one scenario of workload train, for `step` also grpo or dpo. --rank does not change the explanation of
    `step`, which is of the ranks that end last; a step with phases is explained on that rank, or on the fullest that
    trains. Of a recipe the lines follow that each key of its scenario comes from. Exit code 0 also if it does not fit;
    2 for wrong input or a refused layout. With --json a list of one tree is printed.
    """
    from simcore.cli.output import print_json, print_shown
    from simcore.recipes.text import origin_lines

    taken: list[Imported] = []
    report = _simulated(_scenario(scenario, overrides or (), (gpus, seq_len, topology), beside, taken), what)
    step, pictures = _explained(report, what, rank)
    if json:
        print_json([step])
        return
    if pictures:
        print_shown(*pictures)
    sys.stdout.write("".join(f"{line}\n" for line in tree(step)))  # typer.echo would write UTF-8 on any terminal
    for imported in taken:
        sys.stdout.write("".join(f"{line}\n" for line in ("", f"by {imported.path}:", *origin_lines(imported))))


def _scenario(path: str, overrides: Sequence[str], answers: tuple[int | None, int | None, str],
              beside: Sequence[str] | None, taken: list[Imported]) -> Scenario:
    from simcore.cli.recipes import read_entries

    entries = read_entries([path], overrides, *answers, beside=beside, taken=taken)
    if problems := [problem for entry in entries for problem in entry.problems]:
        raise InputError(problems)
    scenarios = [entry.scenario for entry in entries if entry.scenario]
    if len(scenarios) != 1:
        message = f"explains one scenario, this has {len(scenarios)}: --set sweep=null, and --set for what it sweeps"
        raise InputError(Problem(path, message))
    return scenarios[0]


def _simulated(scenario: Scenario, what: What) -> Report:
    from simcore.simulate import simulate

    report = simulate(scenario, detail=True)
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    if report.detail is None and not (what is What.STEP and report.phases):
        message = f"{report.scenario['workload']}: has no single step to explain; expected train" + (
            ", or `explain ... step`" if report.phases else "")
        raise InputError(Problem(scenario.where("workload"), message))
    return report


def _explained(report: Report, what: What, rank: int | None) -> tuple[Step, list[Bars | Spark | str]]:
    from simcore.cli.sheets.memory import Bars, Spark
    from simcore.simulation.explanation import check_rank, class_of, explain_peak, explain_step, explain_trainable

    if report.phases:
        if rank is not None:
            check_rank(report, rank)
        return explain_step(report, rank), []
    rank_class, detail = class_of(report, rank)
    if what is What.TRAINABLE:
        return explain_trainable(report, rank_class, detail), []
    if what is What.STEP:
        return explain_step(report), []
    pictures: list[Bars | Spark | str] = [Bars(report), ""]
    if rank_class.memory:
        pictures += [Spark(rank_class.memory), ""]
    return explain_peak(report, rank_class, detail), pictures


def tree(step: Step) -> Iterator[str]:
    """Lines of text: an explained number with formula and source, and indented below it its parts, and so on."""
    from simcore.cli.sheets.tables import plain

    tail = "  ".join(filter(None, (f"= {step.how}" if step.how else "", f"[{step.source}]" if step.source else "")))
    yield plain(f"{step.amount}  {step.words}" + (f"  {tail}" if tail else ""))
    for number, inner in enumerate(step.inside, 1):
        is_last = number == len(step.inside)
        first, *others = tree(inner)
        yield (_LAST if is_last else _BRANCH) + first
        yield from (("   " if is_last else _TRUNK) + line for line in others)
