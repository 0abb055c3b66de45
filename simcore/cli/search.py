"""`rankscope search`: the best layouts of a scenario with free keys. Imports the engine when called."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simcore.cli.options.choose import Columns, Fits, Sort, asked_choice
from simcore.cli.options.elsewhere import Elsewhere, From, On, Part, elsewhere
from simcore.cli.recipes import FilesBeside, SeqLen
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.executors.executor import Open
    from simcore.inputs.scenario import Scenario
    from simcore.inputs.search_keys import SearchKeys
    from simcore.results.found import SearchResult
    from simcore.search.objective import Objective
    from simcore.search.rows import Row
    from simcore.search.search import Search
    from simcore.search.space import Space
    from simcore.tables.choice import Choice

__all__ = ["asked_space", "chosen_objectives", "first_of", "names_in", "numbers", "search"]


By = StrEnum("By", ["TOKENS", "STEP", "COST", "PEAK", "GPUS"])
"""Choice of the quantity to rank by: names of `search.objective.OBJECTIVES`."""


Free = Annotated[list[str] | None, typer.Option(
    metavar="KEY[=V,..]", help="Free key, with values; omitted: mesh, micro batch, recompute, options.")]
Where = Annotated[list[str] | None, typer.Option(
    metavar="CONDITION", help="Over keys and results, such as 'mesh.tp <= 8 and peak_gib < 70'.")]
Recipes = Annotated[str, typer.Option("--as", metavar="FORMAT", help="With --write: as recipes.")]
Output = Annotated[Path | None, typer.Option(
    "-o", "--output", metavar="DIR", help="Keep what is simulated in DIR; started again it goes on there.")]


class Counts(StrEnum):
    """Choice of the verdict that an unsure one counts as."""

    FITS = "fits"
    OOM = "oom"


def search(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Scenario files, folders or globs.")],
    *,
    gpus: Annotated[str, typer.Option(metavar="N,..", help="Numbers of GPUs that train, such as 8,16 or 1-24.")] = "",
    framework: Annotated[str, typer.Option(metavar="NAME,..", help="Frameworks to try.")] = "",
    topology: Annotated[str, typer.Option(metavar="NAME,..", help="Machines to try.")] = "",
    free: Free = None, where: Where = None,
    allow: Annotated[list[str] | None, typer.Option(help="Numerics: bf16-params, bf16-grads, bf16-moments.")] = None,
    objective: Annotated[By | None, typer.Option("--objective", help="Quantity to rank by; omitted: tokens.")] = None,
    pareto: Annotated[str, typer.Option(metavar="NAME,..", help="Other objectives of the Pareto set.")] = "",
    top: Annotated[int, typer.Option(min=1, max=1000, help="Places of the ranking.")] = 10,
    sort: Sort = "", fits: Fits = False, columns: Columns = "",
    unsure: Annotated[Counts, typer.Option(help="An unsure verdict counts as this.")] = Counts.OOM,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Time every layout that fits.")] = False,
    write: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the ranking as scenario files.")] = None,
    recipes: Recipes = "", output: Output = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None,
    jobs: Annotated[int | None, typer.Option("-j", "--jobs", min=1, max=256, help="Worker processes.")] = None,
    on: On = "", shard: Part = "", parts: From = None, seq_len: SeqLen = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of answers as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    beside: FilesBeside = None,
) -> None:
    """Search the layouts of a scenario: the best that fit, the Pareto set, and why the others are in neither.

    Free are all degrees of the mesh at the numbers of GPUs, the micro batch, recomputation, and the framework's memory
    options; global batch and numerics stay. With --sort, --fits or --columns candidates are listed instead of the
    ranking, whatever became of them. Exit code 0; 1: none fits; 2: wrong input, none legal.
    """
    which = _choice(sort, top, columns, fits=fits, unsure=unsure is Counts.FITS)
    away, scenarios = elsewhere(on, shard, parts or (), jobs, output), _scenarios(
        paths, overrides or (), gpus, seq_len, topology, beside)
    _check_shard(away, {"--json": json, "--write": write, "--html": html, "--sort, --fits, --columns": which}, recipes)
    questions = [_question(
        asked_space(one, gpus, names_in(framework), names_in(topology), free, where or (), allow or ()),
        _objectives(one, objective, pareto), top=top, unsure=unsure is Counts.FITS, prunes=not exhaustive,
        place=away.place or _processes(jobs or os.cpu_count() or 1)) for one in scenarios]
    found = [_searched(one, away, output, one.space.base.name if len(questions) > 1 else "", which)
             for one in questions]
    raise typer.Exit(_hand_out(scenarios, found, write, html, away, which, json=json, recipes=recipes))


def _choice(sort: str, top: int, columns: str, *, fits: bool, unsure: bool) -> Choice[Row] | None:
    """Candidates to show; None where no option says which."""
    from simcore.search.rows import CANDIDATES

    if not (sort or columns or fits):
        return None
    return asked_choice(CANDIDATES, sort, top, columns, fits=fits, unsure=unsure)


def _check_shard(away: Elsewhere, options: Mapping[str, object], recipes: str) -> None:
    """InputError for a shard, which has no answer, with an option that shows one, and for a wrong `--as`."""
    _check_recipes(options["--write"] is not None, recipes)
    asked = [name for name, value in options.items() if value]
    if away.shard and asked:
        raise InputError(Problem(asked[0], "expected no --shard with it: the answer is that of all shards, by --from"))


def _check_recipes(writes: bool, named: str) -> None:  # noqa: FBT001 - of one option
    """InputError, before anything is searched, for --as without --write, or a format that is not written."""
    from simcore.recipes.conversion.writing import writable_formats

    if named and not writes:
        raise InputError(Problem("--as", "expected --write DIR with it: recipes are files"))
    if named and named not in writable_formats():
        raise InputError(Problem(f"--as {named}"[:120], f"expected one of {', '.join(writable_formats())}"))


def _hand_out(scenarios: Sequence[Scenario], found: Sequence[Found], write: Path | None, html: Path | None,
              away: Elsewhere, which: Choice[Row] | None, *, json: bool, recipes: str) -> int:
    """Exit code of the answers, which are printed, and written as scenarios or recipes and as a page if asked."""
    from simcore.cli.output import print_json, print_rows, say, write_search_page
    from simcore.search.rows import CANDIDATES

    answers = [one.answer for one in found]
    if away.shard:
        say(f"shard {away.shard}: {sum(one.counts.candidates for one in answers):,} candidates done; when all are, "
            "the same search with --from for each folder puts them together")
        return 0
    unsaid = write is not None and _write(write, scenarios, answers, recipes)
    if not json:
        _print(found, which)
    elif which is None:
        print_json(answers)
    else:
        fields = which.columns or CANDIDATES.fields.values()
        print_rows({field.column.name: field.value(row) for field in fields} for one in found for row in one.rows)
    if html is not None:
        write_search_page(html, answers)
    return 2 if unsaid else int(any(not result.best for result in answers))


def _print(found: Sequence[Found], which: Choice[Row] | None) -> None:
    """Prints the ranking of each search, or the candidates that were chosen."""
    from simcore.cli.output import line_width, print_fitted
    from simcore.cli.sheets.candidates import candidate_lines
    from simcore.cli.sheets.found import answer

    if which is None:
        print_fitted(lambda width: (part for one in found for part in answer(one.answer, width)))
    else:
        print_fitted(lambda width: (part for one in found for part in candidate_lines(
            one.answer, one.rows, which, width, line_width(width))))


def _scenarios(paths: Sequence[str], overrides: Sequence[str], gpus: str, seq_len: int | None, topology: str,
               beside: Sequence[str] | None) -> list[Scenario]:
    from simcore.cli.recipes import read_entries

    entries = read_entries(paths, overrides, *first_of(gpus, seq_len, topology), beside=beside, only=False)
    problems = [problem for entry in entries for problem in entry.problems]
    if not entries:
        problems = [Problem(", ".join(paths), "holds no scenario")]
    if problems:
        raise InputError(problems)
    return [entry.scenario for entry in entries if entry.scenario is not None]


def names_in(text: str) -> tuple[str, ...]:
    """Names of a text with commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _objectives(scenario: Scenario, first: By | None, others: str) -> tuple[Objective, ...]:
    keys = _keys(scenario)
    places = ("--objective" if first else scenario.where("search", "objective"),
              "--pareto" if names_in(others) else scenario.where("search", "pareto"))
    return chosen_objectives(first.value if first else keys.objective, names_in(others) or keys.pareto, places)


def _keys(scenario: Scenario) -> SearchKeys:
    """The scenario's block `search`, or one with defaults."""
    from simcore.inputs.search_keys import SearchKeys

    return scenario.search or SearchKeys()


def chosen_objectives(first: str, others: Sequence[str], places: tuple[str, str] = ("", "")) -> tuple[Objective, ...]:
    """Objectives by name: the one to rank by, then the others of the Pareto set.

    InputError for an unknown name; `places`: of the one and of the others.
    """
    from simcore.search.objective import OBJECTIVES

    names = tuple(dict.fromkeys((first, *others)))
    for place, name in enumerate((first, *others)):
        if name not in OBJECTIVES:
            raise InputError(Problem(places[place > 0], f"expected {', '.join(OBJECTIVES)}, got {name[:40]!r}"))
    return tuple(OBJECTIVES[name] for name in names)


def asked_space(scenario: Scenario, gpus: str, frameworks: Sequence[str], topologies: Sequence[str],
                free: Sequence[str] | None, where: Sequence[str] = (), allow: Sequence[str] = ()) -> Space:
    """Space from the texts of options, and the scenario's block `search` where they are left out.

    InputError for each that cannot be read, or names nothing.
    """
    from simcore.search.condition import condition
    from simcore.search.space import ALLOWED, place_of, space_of

    keys = _keys(scenario)
    for name in allow or keys.allow:
        if name not in ALLOWED:
            message = f"expected {', '.join(ALLOWED)}, got {name[:40]!r}"
            raise InputError(Problem(place_of(scenario, "allow", name), message))
    conditions = [condition(text, place_of(scenario, "where", text)) for text in where or keys.where]
    return space_of(scenario, gpus=numbers(gpus) or keys.gpus, frameworks=frameworks or keys.framework,
                    topologies=topologies or keys.topology, free=keys.free if free is None else _free(free),
                    allow=allow or keys.allow, conditions=conditions)


def _free(texts: Sequence[str]) -> Mapping[str, tuple[Any, ...]]:
    """Free keys with their values: `mesh.ep=2,4` has two, `mesh.ep,mesh.tp` are two keys with none."""
    from simcore.inputs.document import parse_value

    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals:
            found |= dict.fromkeys(names_in(text), ())
            continue
        parsed = parse_value(f"[{values}]", f"--free {text}"[:120])
        if not isinstance(parsed, list) or not parsed:
            raise InputError(Problem(f"--free {text}"[:120], "expected values, such as mesh.ep=2,4"))
        found[key.strip()] = tuple(parsed)
    return found


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of GPUs from text: `8,16`, or `1-24` for each from 1 to 24. InputError for anything else."""
    from simcore.inputs.scenario import MAX_RANKS

    found: list[int] = []
    for part in names_in(text) or ((text,) if text else ()):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 9 or len(last) > 9:
            message = f"expected numbers such as 8,16 or 1-24, got {part[:40]!r}"
            raise InputError(Problem(f"--gpus {text}"[:120], message))
        ends = int(first), int(last) if dash else int(first)
        if not 1 <= ends[0] <= ends[1] <= MAX_RANKS:
            raise InputError(Problem(f"--gpus {text}"[:120], f"expected 1 to {MAX_RANKS:,} GPUs, got {part}"))
        found += range(ends[0], ends[1] + 1)
    return tuple(dict.fromkeys(found))


def first_of(gpus: str, seq_len: int | None, topology: str) -> tuple[int | None, int | None, str]:
    """Answers out of the options of a search, which may list several: the first number of GPUs, the first machine."""
    first = numbers(gpus)[0] if gpus else None
    return first, seq_len, (*names_in(topology), "")[0]


def _processes(workers: int) -> Open[Any] | None:
    """Worker processes, or None for this process."""
    from simcore.executors.processes import processes

    return processes(workers) if workers > 1 else None


def _question(space: Space, objectives: tuple[Objective, ...], *, top: int, unsure: bool, prunes: bool,
              place: Open[Any] | None) -> Search:
    from simcore.search.search import Search

    return Search(space, objectives, top, unsure, place, prunes)


@dataclass(frozen=True, slots=True)
class Found:
    """Answer of a search, and the rows of candidates that a user chose, in order."""

    answer: SearchResult
    rows: Sequence[Row] = ()


def _searched(question: Search, away: Elsewhere, output: Path | None, inner: str, which: Choice[Row] | None) -> Found:
    """Answer of a search; `inner`: name of its folder in those of the options, "" for one scenario."""
    from simcore.cli.output import complain
    from simcore.cli.sheets.stages import announce, stages
    from simcore.search.search import search as find
    from simcore.search.space import place_of_space

    rows: list[Row] = []
    announce(question)
    with stages() as told:
        kept = None if output is None else output / inner
        result = find(question, told, kept, shard=away.shard, parts=[part / inner for part in away.parts],
                      noted=lambda note: complain([note]),
                      taken=None if which is None else lambda made: rows.extend(_chosen(made, which)))
    if result.counts.refused == result.counts.candidates and not away.shard:
        most = result.refused[0]
        rule = f" [{most.rule}]" if most.rule != most.message and not most.rule.endswith("#") else ""
        message = (f"no layout is legal: {most.count:,} of {result.counts.candidates:,} refused with: "
                   f"{most.message}{rule}")
        raise InputError(Problem(place_of_space(question.space.base), message))
    return Found(result, rows)


def _chosen(made: Iterable[Row], which: Choice[Row]) -> list[Row]:
    """Chosen rows in order; they are made twice, so that all others are never held."""
    keys = [(key, place) for place, row in enumerate(made) if (key := which.key(row)) is not None]
    places = which.chosen(keys)
    wanted = set(places)
    rows = {place: row for place, row in enumerate(made) if place in wanted}
    return [rows[place] for place in places]


def _write(folder: Path, scenarios: Sequence[Scenario], found: Sequence[SearchResult], recipes: str) -> bool:
    """True if a layout cannot be written as a recipe of the format `recipes`; "" writes scenarios."""
    from simcore.inputs.paths import write_whole, writing
    from simcore.search.scenarios import files_of

    if recipes:
        return _write_recipes(folder, recipes, scenarios, found)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files_of(scenarios, found, folder):
        with writing(folder / name):
            write_whole(folder / name, text)
    return False


def _write_recipes(folder: Path, named: str, scenarios: Sequence[Scenario], found: Sequence[SearchResult]) -> bool:
    """True if a layout could not be written as a recipe; why is said, and the others are written."""
    from simcore.cli.output import complain, say
    from simcore.errors import RankscopeError
    from simcore.inputs.paths import write_whole, writing
    from simcore.recipes.conversion.converting import convert
    from simcore.recipes.text import recipe_text
    from simcore.search.scenarios import layouts_of

    unsaid = False
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for stem, layout in layouts_of(scenarios, found):
        try:
            made = convert(layout, named)
            made.expect_complete()
        except RankscopeError as error:
            complain(error.problems)
            unsaid = True
            continue
        path = folder / f"{stem}{made.suffix}"
        with writing(path):
            write_whole(path, recipe_text(made, layout.name))
        for line in made.launch.splitlines():
            say(f"{path}: launch: {line}")
    return unsaid
