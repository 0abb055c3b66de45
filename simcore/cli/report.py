"""`rankscope report`: results as one page to look at, and as figures. The engine is imported when it is called.

Results hold no pictures' data, so few of them are simulated once more, from the scenario that each holds. Where that
gives other numbers (another version wrote them), the results stand as they are, and the page says less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.batch.unfinished import PART, RESULTS
from simcore.errors import InputError, Problem
from simcore.inputs.paths import is_file

if TYPE_CHECKING:
    from simcore.results.report import Report

__all__ = ["report", "results_of"]


def report(
    results: Annotated[list[str], typer.Argument(
        metavar="RESULTS...", help="results.jsonl, --json output, folders of run -o; or scenarios.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="A folder for each picture as SVG.")] = None,
    png: Annotated[bool, typer.Option("--png", help="Figures as PNG too (needs rankscope[figures]).")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was drawn as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Of scenarios.")] = None,
) -> None:
    """Draw results: one page that needs nothing else, and with --figures each picture by itself."""
    from simcore.cli.output import print_json, write_figures, write_page
    from simcore.results.detail import MAX_DETAILED

    _check_png(figures, png=png)
    found = [one for path in results for one in results_of(Path(path), overrides or ())]
    if len(found) <= MAX_DETAILED:
        found = [_closer(one) for one in found]
    told, problems = list[str](), list[Problem]()
    with _apart(problems):
        write_page(output, found)
        told.append(f"wrote {output}: {len(found):,} scenario{'' if len(found) == 1 else 's'}")
    with _apart(problems):
        if figures is not None:
            told.append(f"wrote {len(write_figures(figures, found, png=png)):,} figures to {figures}")
            told += ["no font was found: the PNGs have no letters; the SVGs have theirs"] * (png and not _has_letters())
    if json:
        print_json(found)
    else:
        typer.echo("".join(f"{line}\n" for line in told), nl=False)
    if problems:
        raise InputError(problems)


@contextmanager
def _apart(problems: list[Problem]) -> Iterator[None]:
    """What cannot be written costs that alone."""
    try:
        yield
    except InputError as error:
        problems += error.problems


def _check_png(figures: Path | None, *, png: bool) -> None:
    """Before anything is simulated."""
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


def results_of(path: Path, overrides: Sequence[str]) -> Iterator[Report]:
    """Results as they are; scenarios are simulated. InputError for what is neither, and to override a result."""
    from simcore.batch.gate import read_results
    from simcore.cli.output import say

    held = next((path / name for name in (RESULTS, PART) if is_file(path / name)), path)
    if is_file(path / PART):
        say(f"{path}: its last batch is not finished; the same run goes on with it")
    if held.suffix in (".json", ".jsonl", ".part"):
        if overrides:
            raise InputError(Problem("--set", f"expected a scenario whose keys to override, {held} holds results"))
        yield from read_results(held)
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


def _closer(found: Report) -> Report:
    """The same result with what pictures show, if this version still comes to it."""
    from simcore.inputs.document import Document
    from simcore.inputs.scenario import parse_scenario
    from simcore.simulate import simulate

    if found.detail is not None or found.status != "ok" or not found.ranks:
        return found
    try:
        again = simulate(parse_scenario(Document(found.name, found.scenario)), detail=True)
    except InputError as error:
        return _told(found, f"its scenario cannot be simulated again: {error.problems[0].message}")
    if _bare(again) != _bare(found):
        return _told(found, "this version comes to other numbers, so it is shown without tensors and streams")
    return again.model_copy(update={"advice": found.advice})


def _told(found: Report, why: str) -> Report:
    from simcore.cli.output import say

    say(f"{found.name}: {why}")
    return found


def _bare(found: Report) -> Report:
    """What two runs of one version must agree in."""
    ranks = tuple(rank.model_copy(update={"memory": None}) for rank in found.ranks)
    return found.model_copy(update={"ranks": ranks, "detail": None, "advice": ()})
