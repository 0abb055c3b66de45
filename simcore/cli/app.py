"""The command line: reads arguments, calls the engine, prints with `output`, `tables` and `summary`.

The engine is imported inside the commands, so that `--help` and completion start at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from simcore.cli.calibrate import calibrate
from simcore.cli.convert import convert
from simcore.cli.exit_codes import ended
from simcore.cli.explain import explain
from simcore.cli.export import export
from simcore.cli.first_file import init, schema
from simcore.cli.lint import lint
from simcore.cli.lists import LISTS
from simcore.cli.options.choose import Columns, Fits, Sort, asked_choice
from simcore.cli.options.elsewhere import From, On, Part, elsewhere
from simcore.cli.options.usage import called
from simcore.cli.query import query
from simcore.cli.read import read
from simcore.cli.recipes import FilesBeside, Gpus, Loose, SeqLen, Topology, import_
from simcore.cli.report import report
from simcore.cli.search import search
from simcore.cli.solve import solve
from simcore.cli.verify import verify
from simcore.errors import InputError, Problem
from simcore.studio.command import studio

if TYPE_CHECKING:
    from simcore.batch.compared import Compared
    from simcore.batch.folder import Existing
    from simcore.batch.gate import Gate
    from simcore.batch.run import Work
    from simcore.cli.options.elsewhere import Elsewhere
    from simcore.cli.session import Ran
    from simcore.inputs.loading import Entry
    from simcore.results.report import Report
    from simcore.tables.choice import Choice

__all__ = ["app", "main"]

app = typer.Typer(
    name="rankscope", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="What lies on every rank, when memory is highest and why, what crosses the wires, how long a step takes.\n\n"
    "Exit codes: 0 fits, 1 does not fit or got worse, 2 wrong input or an illegal layout, 3 a bug of ours, "
    "130 (Ctrl-C) and 143 (SIGTERM) interrupted with results kept.",
)

Paths = Annotated[list[str], typer.Argument(metavar="PATH...", help="Scenario files, folders or globs.")]
OptionalPaths = Annotated[list[str] | None, typer.Argument(metavar="PATH...", help="Scenario files, folders or globs.")]
Rows = Annotated[list[str] | None, typer.Argument(metavar="PATH...", help="Measured rows (default: the shipped ones).")]
Json = Annotated[bool, typer.Option("--json", help="Print a list of results as JSON, nothing else.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. mesh.ep=4.")]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank, exactly.")]
Advise = Annotated[bool | None, typer.Option(help="Find changes that make it fit; omitted: up to 8 scenarios.")]
Output = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="DIR", help="Write DIR/results.jsonl. The same batch started again goes on where it was "
    "or, if it is finished, is read; another one is refused.")]
Jobs = Annotated[int | None, typer.Option(
    "-j", "--jobs", min=1, max=256, help="Worker processes; omitted: as many as pay off.")]


def _print_version(asked: bool) -> None:  # noqa: FBT001  a typer callback takes the value by position
    """Prints name and version of the installed distribution, and exits."""
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"rankscope {version('rankscope')}")
        except PackageNotFoundError:  # run from sources that are not installed
            typer.echo("rankscope, not installed")
        raise typer.Exit


@app.callback()
def rankscope(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True,
                                          help="Print the version and exit.")] = False,
) -> None:
    """Takes the options before a command: `--version` prints name and version and ends the process.

    The text of its `--help` is that of `app`.
    """


class Unsure(StrEnum):
    """Choice of `run --unsure`: the verdict that an unsure one counts as in the exit code."""

    FITS = "fits"
    OOM = "oom"


CountsAs = Annotated[Unsure | None, typer.Option(
    help="An unsure verdict counts as this; omitted: fits, with --max-fill, --baseline or --format oom.")]
Details = Annotated[bool, typer.Option("--details", help="All columns, parts of the step, kernels, collectives.")]


Top = Annotated[int | None, typer.Option(min=1, help="Show only so many.")]


class Format(StrEnum):
    """Choice of `run --format`: findings for GitHub (workflow commands) or as JUnit XML."""

    GITHUB = "github"
    JUNIT = "junit"


@app.command()
def run(
    paths: OptionalPaths = None,
    *,
    example: Annotated[list[str] | None, typer.Option(help="A scenario that comes with rankscope.")] = None,
    output: Output = None,
    append: Annotated[bool, typer.Option("--append", help="With -o: add to the results of other batches.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With -o: replace old results.")] = False,
    jobs: Jobs = None,
    on: On = "", shard: Part = "", parts: From = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None,
    max_fill: Annotated[str | None, typer.Option(help="Allowed share of the capacity, e.g. 92%.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="Earlier --json output; worse by over 1 % is exit 1.")] = None,
    report_format: Annotated[Format | None, typer.Option("--format", help="CI output format.")] = None,
    unsure: CountsAs = None,
    advise: Advise = None, details: Details = False,
    sort: Sort = "", top: Top = None, fits: Fits = False, columns: Columns = "",
    json: Json = False, rank: Rank = None, beside: FilesBeside = None, loose: Loose = False,
    overrides: Set = None, gpus: Gpus = None, seq_len: SeqLen = None, topology: Topology = "",
) -> None:
    """Simulate scenarios, or recipes: memory, traffic and time of a training step.

    Exit code, the highest of all: 0 fits, or a refused layout of a sweep; 1 does not fit on device or host, is unsure
    where --unsure says oom, passes --max-fill, or is worse than --baseline; 2 wrong input, refused layout, or output
    that cannot be written; 3 a bug.
    """
    from simcore.batch.advice import work
    from simcore.cli.shown import show
    from simcore.lint.all_problems import answered_in_full
    asked = _gates(max_fill, baseline, report_format, unsure)
    which = _choice(sort, top, columns, unsure, fits=fits)
    existing = _existing(output, append=append, overwrite=overwrite)
    away = elsewhere(on, shard, parts or (), jobs, output)
    entries = _entries(_named(paths, example), overrides, gpus, seq_len, topology, beside, loose=loose)
    _say_unmatched(entries, baseline)
    made = work(len(entries), asked=advise, drawn=html is not None, shown=not (json or output or report_format))
    chosen = partial(answered_in_full, made, rank=rank)
    ran = _run(entries, chosen, jobs, away, output, existing)
    code = show(ran, asked=asked, json=json, report_format=report_format, details=details, choice=which,
                told=report_format is Format.GITHUB)
    raise typer.Exit(max(code, 0 if html is None else _written(html, [o.report for o in ran.outcomes])))


@app.command()
def place(scenario: str, *, rank: Rank = None, json: Json = False, overrides: Set = None, gpus: Gpus = None,
          seq_len: SeqLen = None, topology: Topology = "", beside: FilesBeside = None) -> None:
    """Show what lies on every rank at rest, component by component: weights, gradients, optimizer states.

    A table for each class of ranks with equal memory, then the summary; no step is simulated, and a notice says so if
    none could be. SCENARIO may hold a sweep. Exit code 0; 1: an inference engine does not start; 2: wrong input or a
    refused layout (0 in a sweep).
    """
    from simcore.cli.output import print_shown
    from simcore.cli.session import run_entries
    from simcore.cli.sheets.tables import placement
    from simcore.cli.shown import show
    from simcore.simulate import place as place_ranks

    ran = run_entries(_entries([scenario], overrides, gpus, seq_len, topology, beside), partial(place_ranks, rank=rank))
    if not json:
        print_shown(*(part for o in ran.outcomes for part in placement(o.report)))
    raise typer.Exit(show(ran, json=json))


@app.command()
def check(paths: Paths, *, json: Json = False, overrides: Set = None, gpus: Gpus = None, seq_len: SeqLen = None,
          topology: Topology = "", beside: FilesBeside = None) -> None:
    """Parse scenarios and say whether `run` answers: layouts are legal, and a step's operators are modelled.

    Neither memory nor time is simulated. Exit code 0; 1: an inference engine does not start; 2: wrong input, an illegal
    layout (0 in a sweep), or one that is not modelled yet.
    """
    from simcore.cli.session import run_entries
    from simcore.cli.shown import show
    from simcore.lint.all_problems import answered_in_full
    from simcore.simulate import check as check_layout

    entries = _entries(paths, overrides, gpus, seq_len, topology, beside)
    raise typer.Exit(show(run_entries(entries, partial(answered_in_full, check_layout)), json=json))


@app.command()
def compare(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Scenario files or results, several or one.")],
    *,
    names: Annotated[list[str] | None, typer.Option("--name", help="Only this scenario, once for each.")] = None,
    like: Annotated[str | None, typer.Option("--like", metavar="NAME", help="Give the others its defaults.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a row for each quantity.")] = None,
    json: Json = False,
    overrides: Set = None,
) -> None:
    """Compare two or more scenarios, or results of `run` (.json, .jsonl, a folder), on their worst ranks.

    Of one file all scenarios are compared; with --set they are compared with themselves, changed. --like sets what
    differs by default from that one, where a framework takes it. Exit code 0 however they differ, 2 if one has no
    result or their workloads differ, 3 for a bug. With --json a list of one comparison is printed.
    """
    from simcore.batch.compared import compared, made_alike
    from simcore.cli.output import print_comparison, print_json, say, write_comparison
    from simcore.results.compare import compare as side_by_side

    found = compared(paths, overrides or (), names or ())
    found, kept = (found, []) if like is None else made_alike(found, like)
    reports = _compared(found, drawn=html is not None)
    both = side_by_side(*reports, kept=kept)
    if json:
        print_json([both])
        for one in kept:
            say(f"{both.names[one.place]}: {one}")
    else:
        print_comparison(both)
    write_comparison(both, reports, html=html, csv=csv)


@app.command()
def validate(paths: Rows = None, *, jobs: Jobs = None, json: Json = False, overrides: Set = None) -> None:
    """Compare with measured runs: errors of memory and of step time; exit 1 where they pass the tolerance.

    Exit code 2 if a measured row cannot be read, 3 for a bug in a simulation. With --json a list of one comparison is
    printed.
    """
    from simcore.cli.output import complain, print_validation
    from simcore.cli.session import run_entries
    from simcore.simulate import simulate
    from simcore.validation.runs import layout_of, read_measured
    from simcore.validation.validate import layouts
    from simcore.validation.validate import validate as judge

    measured, problems = read_measured(paths or (), overrides or ())
    entries = layouts(measured)
    ran = run_entries(entries, simulate, jobs)
    complain(problems)
    if ran.ended:
        raise typer.Exit(ran.ended)
    reports = {layout_of(entry): outcome.report for entry, outcome in zip(entries, ran.outcomes, strict=True)}
    judged = judge(measured, reports)
    print_validation(judged, json=json)
    raise typer.Exit(max([2 * bool(problems), int(not judged.is_within), *(3 for o in ran.outcomes if o.code == 3)]))


for _command in (calibrate, convert, explain, export, *LISTS, init, lint, query, read, report, schema, search, solve,
                 studio, verify):
    app.command()(_command)
app.command("import")(import_)


def _named(paths: Sequence[str] | None, examples: Sequence[str] | None) -> list[str | Path]:
    """Files that are named, and those of examples."""
    from simcore.inputs.shipped import example

    return [*(paths or ()), *map(example, examples or ())]


def _entries(paths: Sequence[str | Path], overrides: Sequence[str] | None, gpus: int | None, seq_len: int | None,
             topology: str, beside: Sequence[str] | None, *, loose: bool = False) -> list[Entry]:
    from simcore.cli.recipes import read_entries
    from simcore.lint.all_problems import in_full

    if not paths:
        raise InputError(Problem("", "no scenario given: name files, folders or globs, or --example NAME"))
    if entries := read_entries(paths, overrides or (), gpus, seq_len, topology, beside=beside, loose=loose):
        return [in_full(entry) for entry in entries]
    raise InputError(Problem(", ".join(map(str, paths)), "holds no scenario"))


def _run(entries: Sequence[Entry], work: Work, jobs: int | None, away: Elsewhere, output: Path | None,
         existing: Existing) -> Ran:
    """Simulates entries, a part of them, or takes the outcomes of all parts."""
    from simcore.batch.folder import Existing
    from simcore.batch.shards import outcomes_of_shards
    from simcore.cli.session import run_entries

    if away.shard and existing is Existing.APPEND:
        raise InputError(Problem("--append", "expected no --shard with it: a folder has one shard"))
    taken = outcomes_of_shards(away.parts, entries, work) if away.parts else None
    return run_entries(entries, work, jobs, output, existing, place=away.place, shard=away.shard, taken=taken)


def _gates(max_fill: str | None, baseline: Path | None, report_format: Format | None, unsure: Unsure | None
           ) -> list[Gate]:
    """Checks of results; where a user asks for a gate an unsure verdict counts as out of memory, unless said."""
    from simcore.batch.gate import gates

    careful = (max_fill, baseline, report_format) != (None, None, None)
    return gates(max_fill, baseline, unsure=(unsure or (Unsure.OOM if careful else Unsure.FITS)).value)


def _choice(sort: str, top: int | None, columns: str, unsure: Unsure | None, *, fits: bool) -> Choice[Report] | None:
    """Results to show; None where no option says which."""
    from simcore.tables.choice import REPORTS

    if not (sort or top or columns or fits):
        return None
    return asked_choice(REPORTS, sort, top, columns, fits=fits, unsure=unsure is Unsure.FITS)


def _say_unmatched(entries: Sequence[Entry], baseline: Path | None) -> None:
    """Says which scenarios the baseline lacks, and which only it has."""
    from simcore.batch.gate import unmatched
    from simcore.cli.output import say

    if baseline is not None and (message := unmatched([entry.name for entry in entries], baseline)):
        say(f"{baseline}: {message}")


def _existing(output: Path | None, *, append: bool, overwrite: bool) -> Existing:
    from simcore.batch.folder import Existing

    if append and overwrite:
        raise InputError(Problem("--append", "expected this or --overwrite, got both"))
    if (append or overwrite) and output is None:
        raise InputError(Problem("--append" if append else "--overwrite", "expected -o DIR too: the folder it is of"))
    return Existing.APPEND if append else Existing.OVERWRITE if overwrite else Existing.REFUSE


def _written(page: Path, reports: Sequence[Report]) -> int:
    """Writes a page; 2 if it cannot be written, which does not affect the other output."""
    from simcore.cli.output import complain, write_page

    try:
        write_page(page, reports)
    except InputError as error:
        complain(error.problems)
        return 2
    return 0


def _compared(found: Sequence[Compared], *, drawn: bool) -> list[Report]:
    """Results in the order of `found`; `drawn`: with the details of figures, if they are few enough.

    Ends the process with the problems of those that have no result.
    """
    from simcore.cli.report import closer
    from simcore.cli.session import run_entries
    from simcore.cli.shown import show
    from simcore.results.detail import MAX_DETAILED
    from simcore.simulate import simulate

    detail = drawn and len(found) <= MAX_DETAILED
    ran = run_entries([one.entry for one in found if one.entry], partial(simulate, detail=True) if detail else simulate)
    if ran.ended or any(o.code > 1 for o in ran.outcomes):
        raise typer.Exit(show(ran, json=False, summary=False))
    simulated = iter(ran.outcomes)
    return [(closer(one.result) if detail else one.result) if one.result else next(simulated).report for one in found]


def main() -> NoReturn:
    """Runs the command `rankscope`; ends the process with the published exit codes."""
    ended(partial(called, app))
