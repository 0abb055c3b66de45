"""The command line: reads arguments, calls the engine, prints. What it prints is made in `output`, `table`, `finding`.

The engine is imported inside the commands, so that `--help` and completion start at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from simcore.calibration.command import calibrate
from simcore.errors import InputError, Problem, RankscopeError
from simcore.explain import explain
from simcore.export import export
from simcore.page import report
from simcore.read_back import read
from simcore.signs import replace_signs

if TYPE_CHECKING:
    from simcore.batch import Outcome, Work
    from simcore.finding import Gate
    from simcore.loading import Entry
    from simcore.report import Report

__all__ = ["app", "main"]

INTERRUPTED = 130

app = typer.Typer(
    name="rankscope", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="What lies on every rank, when memory is highest and why, what crosses the wires, how long a step takes.\n\n"
    "Exit codes: 0 fits, 1 does not fit or got worse, 2 wrong input or an illegal layout, 3 a bug of ours, "
    "130 interrupted with results kept.",
)

Paths = Annotated[list[str], typer.Argument(metavar="PATH...", help="Scenario files, folders or globs.")]
OptionalPaths = Annotated[list[str] | None, typer.Argument(metavar="PATH...", help="Scenario files, folders or globs.")]
Rows = Annotated[list[str] | None, typer.Argument(metavar="PATH...", help="Measured rows; none: those that come.")]
Json = Annotated[bool, typer.Option("--json", help="Print a list of results as JSON, nothing else.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. mesh.ep=4.")]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank, exactly.")]
Advise = Annotated[bool | None, typer.Option(help="Say what would make it fit; omitted: of up to 8 scenarios.")]
Jobs = Annotated[int | None, typer.Option("-j", "--jobs", min=1, help="Worker processes; omitted: as many as pay off.")]


class Format(StrEnum):
    """How a build server wants to be told."""

    GITHUB = "github"
    JUNIT = "junit"


@app.command()
def run(
    paths: OptionalPaths = None,
    *,
    example: Annotated[list[str] | None, typer.Option(help="A scenario that comes with rankscope.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write DIR/results.jsonl.")] = None,
    jobs: Jobs = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to look at.")] = None,
    max_fill: Annotated[str | None, typer.Option(help="Allowed share of the capacity, e.g. 92%.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="Earlier --json output; worse by over 1 % is exit 1.")] = None,
    report_format: Annotated[Format | None, typer.Option("--format", help="Tell a build server.")] = None,
    advise: Advise = None,
    json: Json = False,
    overrides: Set = None,
    rank: Rank = None,
) -> None:
    """Simulate scenarios: memory, traffic and time of a training step."""
    from simcore.advice import work
    from simcore.data import example as example_path
    from simcore.finding import gates, unmatched
    from simcore.output import write_page

    asked = gates(max_fill, baseline)
    entries = _entries([*(paths or ()), *map(example_path, example or ())], overrides)
    shown = not (json or output or report_format)
    chosen = partial(work(len(entries), asked=advise, drawn=html is not None, shown=shown), rank=rank)
    outcomes, finished = _outcomes(entries, chosen, jobs, output)
    if html is not None:
        write_page(html, [o.report for o in outcomes])
    if baseline is not None and (told := unmatched([o.report.name for o in outcomes], baseline)):
        typer.echo(f"rankscope: {baseline}: {told}", err=True)
    _finish(outcomes, finished=finished, asked=asked, json=json, report_format=report_format)


@app.command()
def place(scenario: str, *, rank: Rank = None, json: Json = False, overrides: Set = None) -> None:
    """Show what lies on every rank, component by component."""
    from simcore.output import print_shown
    from simcore.simulate import place as place_ranks
    from simcore.table import placement

    outcomes, finished = _outcomes(_entries([scenario], overrides), partial(place_ranks, rank=rank))
    if not json:
        print_shown(*(part for o in outcomes for part in placement(o.report)))
    _finish(outcomes, finished=finished, json=json)


@app.command()
def check(paths: Paths, *, json: Json = False, overrides: Set = None) -> None:
    """Parse scenarios and ask the frameworks' rules whether their layouts are legal."""
    from simcore.simulate import check as check_layout

    outcomes, finished = _outcomes(_entries(paths, overrides), check_layout)
    _finish(outcomes, finished=finished, json=json)


@app.command()
def compare(a: str, b: str, *, json: Json = False, overrides: Set = None) -> None:
    """Compare two scenarios, or results of `run --json`, on their worst ranks."""
    from simcore.compare import compare as side_by_side
    from simcore.output import print_json, print_shown

    if overrides and a.endswith(".json") and b.endswith(".json"):
        raise InputError(Problem("--set", "expected a scenario whose keys to override, got two results"))
    both = side_by_side(_result(a, overrides), _result(b, overrides))
    if json:
        print_json([both])
    else:
        from simcore.table import comparison

        print_shown(comparison(both))


@app.command()
def validate(paths: Rows = None, *, jobs: Jobs = None, json: Json = False, overrides: Set = None) -> None:
    """Compare with measured runs: errors of memory and of step time; exit 1 where they pass the tolerance."""
    from simcore.measured import layout_of, read_measured
    from simcore.output import complain, print_validation
    from simcore.simulate import simulate
    from simcore.validate import layouts
    from simcore.validate import validate as judge

    measured, problems = read_measured(paths or (), overrides or ())
    entries = layouts(measured)
    outcomes, finished = _outcomes(entries, simulate, jobs)
    complain(problems)
    if not finished:
        raise typer.Exit(INTERRUPTED)
    reports = {layout_of(entry): outcome.report for entry, outcome in zip(entries, outcomes, strict=True)}
    found = judge(measured, reports)
    print_validation(found, json=json)
    raise typer.Exit(max([2 * bool(problems), int(not found.is_within), *(3 for o in outcomes if o.code == 3)]))


@app.command()
def schema(*, result: Annotated[bool, typer.Option("--result", help="Of results, not scenarios.")] = False,
           json: Json = False) -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from simcore.output import print_schema

    print_schema(result=result)


@app.command()
def init(
    file: Annotated[str, typer.Argument(help="Where to write it; - is standard output.")] = "scenario.yaml",
    *,
    name: Annotated[str | None, typer.Option(help="Its name; omitted: the file's.")] = None,
    model: str = "nemotron-3-nano-30b-a3b",
    framework: str = "fsdp2",
    topology: str = "dgx-h100",
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    json: Json = False,
) -> None:
    """Write a first scenario with a comment beside every key."""
    from simcore.output import write_new
    from simcore.starter import starter_text

    path = Path("scenario.yaml" if file == "-" else file)
    text = starter_text(name or path.stem, model, framework, topology)
    if file == "-":
        typer.echo(text, nl=False)
        return
    write_new(path, text, force=force)
    if not json:
        typer.echo(f"wrote {path}; next: rankscope run {path}")


for _command in (calibrate, explain, export, read, report):
    app.command()(_command)


def _entries(paths: Sequence[str | Path], overrides: Sequence[str] | None) -> list[Entry]:
    from simcore.loading import read

    if not paths:
        raise InputError(Problem("", "no scenario given: name files, folders or globs, or --example NAME"))
    if entries := read(paths, overrides or ()):
        return entries
    raise InputError(Problem(", ".join(map(str, paths)), "holds no scenario"))


def _outcomes(entries: Sequence[Entry], work: Work, jobs: int | None = None,
              output: Path | None = None) -> tuple[list[Outcome], bool]:
    """What came out, in order, and whether nobody interrupted it."""
    from simcore.batch import num_workers, run_batch
    from simcore.output import lines, progress

    outcomes: list[Outcome] = []
    with lines(output) as write, progress(len(entries)) as advance:

        def keep(outcome: Outcome) -> None:
            outcomes.append(outcome)
            write(outcome.report)
            advance()

        finished = run_batch(entries, work, keep, workers=jobs or num_workers(len(entries)))
    return outcomes, finished


def _finish(outcomes: Sequence[Outcome], *, finished: bool, json: bool, asked: Sequence[Gate] | None = None,
            report_format: Format | None = None, summary: bool = True) -> NoReturn:
    """Prints everything and exits with the highest code of the scenarios."""
    from simcore import output
    from simcore.finding import gates

    reports = [o.report for o in outcomes]
    findings = [found for o in outcomes for gate in asked or gates() for found in gate(o)]
    if report_format is not None:
        typer.echo(output.ci_text(report_format, [r.name for r in reports], findings), nl=False)
    elif json:
        output.print_json(reports)
    elif summary:
        output.print_summary(reports)
    findings.sort(key=lambda found: -found.code)
    output.complain(findings)
    if not finished:
        typer.echo(f"rankscope: interrupted, {len(outcomes)} results kept", err=True)
    codes = (*(o.code for o in outcomes), *(f.code for f in findings))
    raise typer.Exit(max(codes, default=0) if finished else INTERRUPTED)


def _result(path: str, overrides: Sequence[str] | None) -> Report:
    """Of the one scenario in a file, simulated, or of an earlier `run --json`."""
    from simcore.finding import read_results
    from simcore.simulate import simulate

    if path.endswith(".json"):
        reports = read_results(Path(path))
    else:
        outcomes, finished = _outcomes(_entries([path], overrides), simulate)
        if not finished or any(o.code > 1 for o in outcomes):
            _finish(outcomes, finished=finished, json=False, summary=False)
        reports = [o.report for o in outcomes]
    if len(reports) != 1:
        raise InputError(Problem(path, f"compare takes one scenario from each file, this has {len(reports)}"))
    return reports[0]


def main() -> NoReturn:
    """The command `rankscope`; ends the process with the published exit codes."""
    gc.set_threshold(100_000, 20, 50)  # recordings end by reference counts: seldom walk the caches
    replace_signs(sys.stdout, sys.stderr)
    try:
        app()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    except RankscopeError as error:
        from simcore.output import complain

        complain(error.problems)
        code = 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = 0
    except Exception as error:  # noqa: BLE001 - whatever it is, a person sees one line and a way to report it
        code = _bug(error)
    sys.exit(_flushed(code))


def _bug(error: Exception) -> int:
    if os.environ.get("RANKSCOPE_DEBUG"):
        import traceback

        traceback.print_exc()
    what = f"bug in rankscope: {type(error).__name__}: {error}"
    typer.echo(f"{what}, please report; rerun with RANKSCOPE_DEBUG=1 for the traceback", err=True)
    return 3


def _flushed(code: int) -> int:
    """Nobody may be reading any more (`| head`), which Python would complain about at its very end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
