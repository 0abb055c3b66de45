"""Output: results to standard output or files, problems and progress to standard error."""

from __future__ import annotations

import json as json_text
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from simcore.batch.gate import Finding, github, junit
from simcore.errors import InputError, Problem
from simcore.inputs.paths import exists, write_whole, writing
from simcore.results.report import Report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcore.cli.sheets.summary import Tally
    from simcore.results.compare import Comparison
    from simcore.results.found import SearchResult
    from simcore.results.frame import Field, Value
    from simcore.validation.validate import Validation

__all__ = [
    "ci_text",
    "complain",
    "line_width",
    "print_columns",
    "print_comparison",
    "print_fitted",
    "print_json",
    "print_line",
    "print_rows",
    "print_schema",
    "print_shown",
    "print_summary",
    "print_tally",
    "print_validation",
    "progress",
    "write_comparison",
    "write_figures",
    "write_new",
    "write_page",
    "write_search_page",
]

_MOST_LINES = 30
_LONGEST_LINE = 1000
_ANY = 10**6
"""Characters of a line of a pipe."""
_LONG = 20
"""Batches from this size on show their progress on a terminal."""


class _Json(Protocol):
    def model_dump_json(self) -> str: ...


def print_json(results: Iterable[_Json]) -> None:
    """Prints `results` to standard output as one JSON list, one result a line."""
    _print_list(result.model_dump_json() for result in results)


def print_rows(rows: Iterable[Mapping[str, Value]]) -> None:
    """Prints rows, values by the name of their column, to standard output as one JSON list, one row a line."""
    _print_list(json_text.dumps(row, ensure_ascii=False) for row in rows)


def _print_list(lines: Iterable[str]) -> None:
    before = "[\n"
    for line in lines:
        sys.stdout.write(before + line)
        before = ",\n"
    sys.stdout.write(("[\n" if before == "[\n" else "") + "\n]\n")


def print_line(line: str) -> None:
    """Prints one line to standard output."""
    sys.stdout.write(f"{_printable(line)}\n")


def print_tally(tally: Tally) -> None:
    """Prints counts of verdicts and reasons to standard output."""
    print_shown(*tally.lines())


def print_columns(reports: Sequence[Report], fields: Sequence[Field[Report]]) -> None:
    """Prints tables with a row a report and a column a field to standard output, as wide as a terminal at most."""
    from simcore.cli.sheets.chosen import chosen_columns
    from simcore.cli.sheets.summary import STYLE, verdict

    styles = [STYLE[verdict(report)] for report in reports]
    print_fitted(lambda width: chosen_columns(reports, fields, styles, line_width(width)))


def print_summary(reports: Sequence[Report], *, details: bool = False, tally: Tally | None = None) -> None:
    """Prints the first screen about all scenarios, and advice, to standard output; a narrow terminal wraps lines.

    `details`: all columns of the summary, and of a step its parts, kernels and collectives. `tally`: counts of all,
    where `reports` are only the best of them.
    """
    from simcore.cli.sheets.engine import servesheet
    from simcore.cli.sheets.first_screen import first_screen
    from simcore.cli.sheets.memory import memorysheet
    from simcore.cli.sheets.phases import phasesheet
    from simcore.cli.sheets.summary import summary
    from simcore.cli.sheets.tables import advice, console, drawn, fitted, hosts
    from simcore.cli.sheets.time import timesheet

    screen = console(sys.stdout)
    lines_below = [["", *lines] for report in reports for lines in (
        fitted(drawn(report), screen.width), fitted(hosts(report), screen.width), advice(report, screen.width))
        if lines]
    of_time = timesheet(reports, screen.width) if details else []
    sheets_of_kind = (memorysheet(reports), of_time, phasesheet(reports), servesheet(reports, screen.width))
    sheets = [["", *sheet] for sheet in sheets_of_kind if sheet]
    first = first_screen if not details and any(report.peak_rank for report in reports) else summary
    screen.print(*first(reports, screen.width, tally), *(line for sheet in sheets for line in sheet),
                 *(line for lines in lines_below for line in lines), sep="\n", soft_wrap=True)


def print_shown(*shown: RenderableType) -> None:
    """Prints tables and lines of text to standard output, below each other."""
    from simcore.cli.sheets.tables import console

    console(sys.stdout).print(*shown, sep="\n")


def line_width(width: int) -> int:
    """Characters of a row of chosen columns: `width` on a terminal; a pipe holds any, unless `COLUMNS` says."""
    return width if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal() else _ANY


def print_fitted(made: Callable[[int], Iterable[RenderableType]]) -> None:
    """Prints the tables and lines that are made for a number of characters to standard output."""
    from simcore.cli.sheets.tables import console

    screen = console(sys.stdout)
    screen.print(*made(screen.width), sep="\n", soft_wrap=True)


def print_comparison(both: Comparison) -> None:
    """Prints the tables of a comparison to standard output, as many results beside each other as the screen holds."""
    from simcore.cli.sheets.comparison import sheet

    print_fitted(partial(sheet, both))


def print_schema(*, result: bool) -> None:
    """Prints the JSON Schema of scenario files, or with `result` that of results, to standard output."""
    from simcore.docgen.editor_schema import editor_schema

    schema = Report.model_json_schema(mode="serialization") if result else editor_schema()
    sys.stdout.write(json_text.dumps(schema, indent=2) + "\n")


def print_validation(found: Validation, *, json: bool) -> None:
    """Prints a comparison with measured runs to standard output: tables, or with `json` a JSON list of it."""
    if json:
        print_json([found])
        return
    from simcore.cli.sheets.tables import console
    from simcore.cli.sheets.validation import validation

    console(sys.stdout).print(*validation(found), sep="\n", soft_wrap=True)


def say(line: str) -> None:
    """Prints one line on standard error, at most 1000 characters, control characters (as in a name) replaced."""
    sys.stderr.write(f"rankscope: {_printable(line)}\n")


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in line[:_LONGEST_LINE])


def complain(problems: Sequence[Problem | str]) -> None:
    """Prints problems on standard error, a line each, equal ones as one; after 30 lines the number of the others."""
    counts = Counter(map(str, problems))
    for line, times in islice(counts.items(), _MOST_LINES):
        sys.stderr.write(f"rankscope: {_printable(line)}{f' ({times:,} times)' if times > 1 else ''}\n")
    if len(counts) > _MOST_LINES:
        sys.stderr.write(f"rankscope: and {len(counts) - _MOST_LINES:,} more\n")


def ci_text(report_format: str, names: Sequence[str], findings: Sequence[Finding]) -> str:
    """Text of findings for a build server, "github" or "junit"; `names`: of all scenarios, for "junit"."""
    return {"github": lambda: github(findings), "junit": lambda: junit(names, findings)}[report_format]()


@contextmanager
def progress(total: int, done: int = 0, found: int = 0) -> Iterator[Callable[[Report], None]]:
    """Context with a progress bar on standard error; yields a function that advances it by one result.

    `total`: number of scenarios; `done`: those that were ready before, of which `found` fit. Without a terminal, or
    below 20 scenarios, there is no bar.
    """
    if total < _LONG or not sys.stderr.isatty():
        yield lambda report: None
        return
    from simcore.cli.sheets.stages import bar

    with bar() as shown:
        task = shown.add_task("scenarios", total=total, completed=done, found=f"{found:,} fit")

        def advance(report: Report) -> None:
            nonlocal found
            found += report.job_verdict == "fits"
            shown.update(task, advance=1, found=f"{found:,} fit")

        yield advance


def write_page(path: Path, reports: Sequence[Report]) -> None:
    """Writes one HTML page about all reports to `path`; InputError if it cannot be written."""
    from viz.pages.page import render

    text = render(reports)
    with writing(path):
        write_whole(path, text)


def write_search_page(path: Path, found: Sequence[SearchResult]) -> None:
    """Writes one HTML page about the answers of searches to `path`; InputError if it cannot be written."""
    from viz.pages.page import render_search

    text = render_search(found)
    with writing(path):
        write_whole(path, text)


def write_comparison(both: Comparison, reports: Sequence[Report], *, html: Path | None, csv: Path | None) -> None:
    """Writes a comparison as an HTML page and as CSV, where a path is given; InputError if one cannot be written."""
    if csv is not None:
        from simcore.results.compare import as_rows
        from simcore.tables.frame_file import write_rows

        with writing(csv):
            write_rows(csv, as_rows(both))
    if html is not None:
        from viz.pages.page import render_comparison

        text = render_comparison(reports, both.kept)
        with writing(html):
            write_whole(html, text)


def write_figures(folder: Path, drawings: Iterable[tuple[str, str]], *, png: bool) -> list[Path]:
    """Writes figures, pairs of name and SVG text, into `folder` as SVG, with `png` as PNG too; returns the paths.

    If one cannot be written, the others are still tried, then InputError is raised.
    """
    from viz.exports.figures import as_png

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written, problems = list[Path](), list[Problem]()
    for name, text in drawings:
        for path in (folder / f"{name}.svg", *([folder / f"{name}.png"] if png else [])):
            try:
                with writing(path):
                    write_whole(path, as_png(text) if path.suffix == ".png" else text)
            except InputError as error:
                problems += error.problems
            else:
                written.append(path)
    if problems:
        raise InputError(problems)
    return written


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Writes `text` to `path`; InputError if it exists and `force` is False, or if it cannot be written."""
    write_all_new({path: text}, force=force)


def write_all_new(texts: Mapping[Path, str], *, force: bool) -> None:
    """Writes a text to each path, or nothing: InputError with all that exist if `force` is False.

    InputError also for the first that cannot be written.
    """
    if taken := [path for path in texts if exists(path) and not force]:
        raise InputError([Problem(str(path), "exists already; --force overwrites it") for path in taken])
    for path, text in texts.items():
        with writing(path):
            write_whole(path, text)
