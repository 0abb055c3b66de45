"""`rankscope export`: a scenario, or results as a table, as a file for other tools. Imports the engine when called.

A format is one function of this file: it takes the scenario and a path, writes, and returns a line for standard error
about each thing that is missing in the file. It is listed in `_WRITERS`, and in `_OF_RANKS` if it can be written for
single ranks; formats of tables, which take many results, are in `_TABLES`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simcore.errors import InputError, NotYet, Problem

if TYPE_CHECKING:
    from simcore.inputs.scenario import Scenario
    from simcore.results.frame import Frame
    from simcore.results.report import Report

__all__ = ["MAX_EXPORTED", "export"]

MAX_EXPORTED: Final = 100_000
"""Spans of a timeline, of all classes of ranks: some 30 MB, which every reader of such files can load."""


class Format(StrEnum):
    """Choice of `export FORMAT`: the kind of file that is written."""

    CHROME = "chrome"
    KINETO = "kineto"
    SNAPSHOT = "snapshot"
    CSV = "csv"
    PARQUET = "parquet"


class Rows(StrEnum):
    """Choice of `export --table`: one row a scenario, or one a class of ranks (equal memory and work)."""

    SCENARIOS = "scenarios"
    RANKS = "ranks"


def export(
    form: Annotated[Format, typer.Argument(
        metavar="FORMAT", help="chrome: a trace for Perfetto; kineto: a folder of traces as PyTorch's profiler writes "
                               "them; snapshot: memory for PyTorch's memory_viz; csv, parquet: a table of results.")],
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="A scenario; of tables, results or scenarios.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write it.")],
    ranks: Annotated[list[int] | None, typer.Option(
        "--rank", min=0, help="Only this rank, once for each; omitted: the first of each class of ranks.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    rows: Annotated[Rows | None, typer.Option("--table", help="Of csv and parquet: a row a scenario (omitted), or a "
                                              "class of ranks.")] = None,
) -> None:
    """Write the timeline or the memory of a scenario, or a table of results, for other tools.

    chrome, kineto and snapshot take exactly one scenario; csv and parquet take any number of results or scenarios.
    Exit code 0 also if a scenario does not fit; 2 for wrong input, and for one that the framework refuses (in a table
    it is a row).
    """
    if ranks and form not in _OF_RANKS:
        raise InputError(Problem("--rank", f"is of {' and '.join(_OF_RANKS)}; {form} is of all ranks"))
    if form in _TABLES:
        notes = _table(form, paths, overrides or (), rows or Rows.SCENARIOS, output)
    elif rows is not None:
        raise InputError(Problem("--table", f"is of csv and parquet, {form} has no rows"))
    else:
        loaded = _scenario(paths, overrides or ())
        notes = _OF_RANKS[form](loaded, output, ranks) if ranks else _WRITERS[form](loaded, output)
    from simcore.cli.output import say

    for line in notes:
        say(line)
    if json:
        typer.echo(_as_json(form, output, notes))
    else:
        typer.echo(f"wrote {output}")


def _as_json(form: Format, output: Path, notes: Sequence[str]) -> str:
    from json import dumps

    return dumps([{"format": form, "written": str(output), "notes": list(notes)}])


def _scenario(paths: Sequence[str], overrides: Sequence[str]) -> Scenario:
    from simcore.inputs.loading import load

    scenarios = [scenario for path in paths for scenario in load(path, overrides)]
    if len(scenarios) != 1:
        message = f"exports one scenario, this has {len(scenarios)}: --set sweep=null, and --set for what it sweeps"
        raise InputError(Problem(", ".join(paths), message))
    return scenarios[0]


def _drawn(scenario: Scenario, ranks: Sequence[int]) -> Report:
    """Report with the detail of figures; InputError without a result, or if some of these ranks do not exist.

    All microbatches are simulated if they have at most `MAX_EXPORTED` spans, else a few of them.
    """
    from simcore.simulate import simulate

    if scenario.workload == "serve":
        message = "serve: an engine that serves has no step, so nothing lies over time; expected train, dpo or grpo"
        raise InputError(Problem(scenario.where("workload"), message))
    report = simulate(scenario, detail=True, spans=MAX_EXPORTED)
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    world = sum(rank.num_ranks for rank in report.ranks)
    if ranks and max(ranks) >= world:
        raise InputError(Problem("--rank", f"expected at most {world - 1}, the last rank, got {max(ranks)}"))
    detail = report.detail
    if detail is None or detail.written_out == detail.num_microbatches:
        return report
    spans = sum(span.count for rank_class in detail.classes for span in rank_class.spans)
    if spans * detail.num_microbatches > MAX_EXPORTED * detail.written_out:
        return report
    return simulate(scenario, detail=True, spans=MAX_EXPORTED, whole=True)


def _chrome(scenario: Scenario, output: Path, ranks: Sequence[int] = ()) -> Sequence[str]:
    from simcore.inputs.paths import write_whole, writing
    from viz.exports.chrome import chrome_trace

    text, notes = chrome_trace(_drawn(scenario, ranks), ranks)
    with writing(output):
        write_whole(output, text)
    return notes


def _kineto(scenario: Scenario, output: Path, ranks: Sequence[int] = ()) -> Sequence[str]:
    """Writes a folder with a file for each rank."""
    from simcore.inputs.paths import write_whole, writing
    from viz.exports.kineto import kineto_traces

    if scenario.workload != "train":
        why = f"not yet: {scenario.workload}, whose phases have no kernels; expected train (chrome takes phases too)"
        raise NotYet(Problem(scenario.where("workload"), why))
    texts, notes = kineto_traces(_drawn(scenario, ranks), ranks)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(output / name, text)
    return [*notes, *_of_others(output, texts)]


def _of_others(folder: Path, names: Collection[str]) -> Iterator[str]:
    """Warning about other traces in the folder, because readers take each of them for a rank of one job."""
    others = sorted(path.name for path in folder.glob("*.json*") if path.name not in names)
    if others:
        yield (f"{folder} held other traces already, which readers take for ranks of this job: {len(others):,}, such as"
               f" {others[0]}")


def _snapshot(scenario: Scenario, output: Path) -> Sequence[str]:
    """Writes PyTorch's memory snapshot of every class of ranks."""
    from simcore.inputs.paths import write_whole, writing
    from simcore.simulate import simulate
    from viz.exports.snapshot import MAX_POSTINGS, notes, pickled, whole_fits

    if scenario.workload != "train":
        raise NotYet(Problem(scenario.where("workload"), f"not yet: a memory snapshot of {scenario.workload}"))
    report = simulate(scenario, detail=True, postings=MAX_POSTINGS)
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    if whole_fits(report):
        report = simulate(scenario, detail=True, postings=MAX_POSTINGS, whole=True)
    with writing(output):
        write_whole(output, pickled(report))
    return notes(report)


_WRITERS: Final[dict[Format, Callable[[Scenario, Path], Sequence[str]]]] = {
    Format.CHROME: _chrome,
    Format.KINETO: _kineto,
    Format.SNAPSHOT: _snapshot,
}
_OF_RANKS: Final[dict[Format, Callable[[Scenario, Path, Sequence[int]], Sequence[str]]]] = {
    Format.CHROME: _chrome,
    Format.KINETO: _kineto,
}


def _table(form: Format, paths: Sequence[str], overrides: Sequence[str], rows: Rows, output: Path) -> Sequence[str]:
    from simcore.cli.report import results_of
    from simcore.inputs.paths import writing
    from simcore.tables.frame_file import check_parquet
    from simcore.tables.tabulate import table

    if form is Format.PARQUET:
        check_parquet()  # before anything is simulated
    frame = table([report for path in paths for report in results_of(Path(path), overrides)], ranks=rows is Rows.RANKS)
    with writing(output):
        return _TABLES[form](output, frame)


def _csv(output: Path, frame: Frame) -> Sequence[str]:
    from simcore.tables.frame_file import write_csv

    changed = write_csv(output, frame)
    note = f"an apostrophe stands before what a spreadsheet would take for a formula, in texts: {changed:,}"
    return [note] if changed else []


def _parquet(output: Path, frame: Frame) -> Sequence[str]:
    from simcore.tables.frame_file import write_parquet

    write_parquet(output, frame)
    return []


_TABLES: Final[dict[Format, Callable[[Path, Frame], Sequence[str]]]] = {
    Format.CSV: _csv,
    Format.PARQUET: _parquet,
}
