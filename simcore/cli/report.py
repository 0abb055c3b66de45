"""`rankscope report`: results as one HTML page, and as figures. Imports the engine when called.

Results have no data for figures, so a few of them are simulated again, from the scenario in each. If that gives other
numbers (another version wrote them), the results are shown unchanged, without detail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simcore.batch.unfinished import PART, results_file
from simcore.errors import InputError, Problem
from simcore.inputs.paths import is_file

if TYPE_CHECKING:
    from simcore.results.found import SearchResult
    from simcore.results.report import Report

__all__ = ["closer", "report", "results_of"]

_MANY: Final = 100
"""Results from which on a page has no more of each than a row and what it opens to."""


def report(
    results: Annotated[list[str], typer.Argument(
        metavar="RESULTS...", help="results.jsonl, --json output, folders of -o (of run or search); or scenarios.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="A folder for each picture as SVG.")] = None,
    png: Annotated[bool, typer.Option("--png", help="Figures as PNG too (needs rankscope[figures]).")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was drawn as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
) -> None:
    """Draw results: one page that needs nothing else, and with --figures each picture by itself.

    Exit code 0 whatever the results say; 2 for wrong input, or a file that cannot be written. With --json the results
    themselves are printed.
    """
    from simcore.cli.output import print_json

    _check_png(figures, png=png)
    drawn = _searched(results, overrides or ()) or _simulations(results, overrides or (), whole=json)
    lines, problems = list[str](), list[Problem]()
    with _apart(problems):
        drawn.write_page(output)
        lines.append(f"wrote {output}: {len(drawn.shown):,} {drawn.noun}")
    with _apart(problems):
        if figures is not None:
            lines.append(f"wrote {len(drawn.write_figures(figures, png=png)):,} figures to {figures}")
            if png and not _has_letters():
                lines.append("no font was found: the PNGs have no letters; the SVGs have theirs")
    if json:
        print_json(drawn.shown)
    else:
        typer.echo("".join(f"{line}\n" for line in lines), nl=False)
    if problems:
        raise InputError(problems)


@dataclass(frozen=True)
class _Drawn:
    """Results of one kind with the functions that draw them. `noun`: word for their number."""

    shown: Sequence[Report] | Sequence[SearchResult]
    noun: str
    write_page: Callable[[Path], None]
    drawings: Callable[[], Iterable[tuple[str, str]]]

    def write_figures(self, folder: Path, *, png: bool) -> list[Path]:
        from simcore.cli.output import write_figures

        return write_figures(folder, self.drawings(), png=png)


def _many(results: Sequence[str], overrides: Sequence[str], *, whole: bool) -> list[Report]:
    """Reports of all paths; of many, unless they are wanted `whole`, with what a page of many shows alone."""
    from simcore.batch.stored import for_a_list

    reports: list[Report] = []

    def kept(result: Report) -> Report:
        return for_a_list(result) if len(reports) >= _MANY and not whole else result

    for path in results:
        for result in results_of(Path(path), overrides, kept):
            reports.append(result)  # noqa: PERF402 - `kept` counts them
    return reports if whole or len(reports) <= _MANY else [*map(for_a_list, reports[:_MANY]), *reports[_MANY:]]


def _simulations(results: Sequence[str], overrides: Sequence[str], *, whole: bool) -> _Drawn:
    from simcore.cli.output import write_page
    from simcore.results.detail import MAX_DETAILED
    from viz.exports.figures import figures

    reports = _many(results, overrides, whole=whole)
    if len(reports) <= MAX_DETAILED:
        reports = [closer(result) for result in reports]
    noun = f"scenario{'' if len(reports) == 1 else 's'}"
    return _Drawn(reports, noun, lambda path: write_page(path, reports), lambda: figures(reports))


def _searched(results: Sequence[str], overrides: Sequence[str]) -> _Drawn | None:
    """Answers of searches; None if no path has any. InputError for paths with and without, and for overrides."""
    from simcore.cli.output import write_search_page
    from simcore.search.answers import read_answers
    from viz.exports.search_figures import search_figures

    found_by_path = {path: read_answers(Path(path)) for path in results}
    found = [one for answers in found_by_path.values() for one in answers]
    if not found:
        return None
    others = [path for path, answers in found_by_path.items() if not answers]
    if others:
        raise InputError(Problem(others[0], "is no answer of a search: a page shows searches or scenarios, not both"))
    if overrides:
        raise InputError(Problem("--set", f"expected a scenario whose keys to override, {results[0]} is a search"))
    noun = f"search{'' if len(found) == 1 else 'es'}"
    return _Drawn(found, noun, lambda path: write_search_page(path, found), lambda: search_figures(found))


@contextmanager
def _apart(problems: list[Problem]) -> Iterator[None]:
    """Collects the problems of one output, so that the others are still written."""
    try:
        yield
    except InputError as error:
        problems += error.problems


def _check_png(figures: Path | None, *, png: bool) -> None:
    """Raises InputError for PNGs that cannot be made, before anything is simulated."""
    if png and figures is None:
        raise InputError(Problem("--png", "expected --figures DIR too: the folder that they go to"))
    if png and not _has_png():
        raise InputError(Problem("--png", "needs resvg-py, which is not installed: pip install 'rankscope[figures]'"))


def _has_letters() -> bool:
    from viz.exports.figures import letters

    return bool(letters())


def _has_png() -> bool:
    try:
        return find_spec("resvg_py") is not None
    except ValueError:  # in sys.modules as None
        return False


def results_of(path: Path, overrides: Sequence[str], kept: Callable[[Report], Report] = lambda report: report,
               ) -> Iterator[Report]:
    """Reports of `path`: those in a file of results or a folder of `run -o`, else its scenarios simulated.

    `kept`: what to keep of each that is read.

    InputError for other files, for wrong scenarios, and for `overrides` (`KEY=VALUE`) of results. Results are not
    changed. Ends the process if a simulation is interrupted.
    """
    from simcore.batch.stored import results_in, uncollected
    from simcore.cli.output import say

    if is_file(path / PART):
        say(f"{path}: its last batch is not finished; the same run goes on with it")
    if file := results_file(path):
        if overrides:
            raise InputError(Problem("--set", f"expected a scenario whose keys to override, {file} holds results"))
        with uncollected():
            yield from results_in(file, kept)
    else:
        yield from _simulated(path, overrides)


def _simulated(path: Path, overrides: Sequence[str]) -> Iterator[Report]:
    from simcore.cli.session import run_entries
    from simcore.inputs.loading import read
    from simcore.simulate import simulate

    entries = read([path], overrides)
    problems = [problem for entry in entries for problem in entry.problems]
    if problems or not entries:
        raise InputError(problems or Problem(str(path), "holds no scenario, and is no result"))
    ran = run_entries(entries, simulate)
    if ran.ended:
        raise typer.Exit(ran.ended)
    yield from (outcome.report for outcome in ran.outcomes)


def closer(result: Report) -> Report:
    """Result with the detail of figures, if this version still computes the same numbers; else unchanged."""
    from simcore.inputs.document import Document
    from simcore.inputs.scenario import parse_scenario
    from simcore.simulate import simulate

    if result.detail is not None or result.status != "ok" or not result.ranks:
        return result
    try:
        again = simulate(parse_scenario(Document(result.name, result.scenario)), detail=True)
    except InputError as error:
        return _told(result, f"its scenario cannot be simulated again: {error.problems[0].message}")
    if _bare(again) != _bare(result):
        return _told(result, "this version comes to other numbers, so it is shown without tensors and streams")
    return again.model_copy(update={"advice": result.advice})


def _told(result: Report, why: str) -> Report:
    from simcore.cli.output import say

    say(f"{result.name}: {why}")
    return result


def _bare(result: Report) -> Report:
    """The fields of a result that two runs of one version must agree in."""
    ranks = tuple(rank.model_copy(update={"memory": None}) for rank in result.ranks)
    return result.model_copy(update={"ranks": ranks, "detail": None, "advice": ()})
