"""`rankscope solve`: the fewest GPUs, the largest batch, the longest sequence, the smallest GPU, the fewest dollars.

Imports the engine when called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from simcore.cli.recipes import FilesBeside, SeqLen
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.inputs.loading import Entry
    from simcore.inputs.scenario import Scenario
    from simcore.recipes.imported import Imported
    from simcore.results.found import FreeLimit
    from simcore.results.limit import Limit, Quantity
    from simcore.search.search import Search

__all__ = ["solve"]


Asked = StrEnum("Asked", ["GPUS", "MICRO_BATCH", "GLOBAL_BATCH", "SEQUENCE"])
"""Choice of the quantity whose limit is asked: GPUs, sequences of a micro or global batch, tokens of a sequence."""
Most = StrEnum("Most", ["SEQ_LEN", "MICRO_BATCH_SIZE", "GLOBAL_BATCH_SIZE"])
"""Choice of the key whose largest value is asked."""
Fewest = StrEnum("Fewest", ["GPUS", "COST"])
"""Choice of the quantity whose smallest value is asked."""
_QUANTITIES: Final[dict[str, Quantity]] = {
    "gpus": "gpus", "cost": "cost", "sequence": "sequence", "seq_len": "sequence", "micro_batch": "micro_batch",
    "micro_batch_size": "micro_batch", "global_batch": "global_batch", "global_batch_size": "global_batch"}
"""Quantities by the words of options."""


@dataclass(frozen=True, slots=True)
class _Layouts:
    """Texts of the options that say which layouts are tried; all empty: that of the scenario alone."""

    gpus: str
    framework: str
    topology: str
    free: Sequence[str] | None
    where: Sequence[str]
    allow: Sequence[str]

    @property
    def are_free(self) -> bool:
        return bool(self.free or self.framework or self.topology)

    def question(self, scenario: Scenario, first: str) -> Search:
        """Search of the layouts, ranked by the objective `first`."""
        from simcore.cli.search import asked_space, chosen_objectives, names_in
        from simcore.search.search import Search

        space = asked_space(scenario, self.gpus, names_in(self.framework), names_in(self.topology), self.free,
                            self.where, self.allow)
        return Search(space, chosen_objectives(first, ["peak"]))

    def expect_none(self) -> None:
        """InputError for an option that says nothing without free layouts."""
        given = {"--gpus": self.gpus, "--where": "; ".join(self.where), "--allow": ",".join(self.allow)}
        for option, text in given.items():
            if text:
                message = "expected --free, --framework or --topology with it"
                raise InputError(Problem(f"{option} {text}"[:120], message))


def solve(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Scenario files, folders or globs.")],
    *,
    quantity: Annotated[Asked | None, typer.Option("--for", help="Quantity whose limit is asked.")] = None,
    most: Annotated[Most | None, typer.Option("--max", help="Key whose largest value is asked.")] = None,
    fewest: Annotated[Fewest | None, typer.Option("--min", help="Quantity whose smallest value is asked.")] = None,
    gpu_of: Annotated[str, typer.Option(metavar="NAME,..", help="Machines of which the smallest GPU is asked.")] = "",
    gpus: Annotated[str, typer.Option(metavar="N,..", help="Only these numbers of GPUs that train; with --free.")] = "",
    framework: Annotated[str, typer.Option(metavar="NAME,..", help="Frameworks to try.")] = "",
    topology: Annotated[str, typer.Option(metavar="NAME,..", help="Machines to try.")] = "",
    free: Annotated[list[str] | None, typer.Option(
        metavar="KEY[=V,..]", help="Keys of the layout that are free, as in search, such as mesh.")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="CONDITION", help="As in search; with --free.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="Numerics, as in search; with --free.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of limits as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    seq_len: SeqLen = None,
    beside: FilesBeside = None,
) -> None:
    """Find the fewest GPUs, the largest batch, the longest sequence or the smallest GPU with which scenarios fit.

    All other keys stay: GPUs are added on the data-parallel axis. With --free, --framework or --topology all their
    layouts are tried, and the best at the limit are listed; --min cost always tries layouts. Without a question: the
    fewest GPUs. Exit code 0; 1 if some scenario fits with no value; 2 for wrong input, or a scenario that is refused
    with every value.
    """
    from simcore.cli.recipes import read_entries
    from simcore.cli.search import first_of

    asked = _asked(quantity, most, fewest, gpu_of)
    recipes: list[Imported] = []
    entries = read_entries(paths, overrides or (), *first_of(gpus, seq_len, topology), beside=beside, only=False,
                           taken=recipes)
    if recipes and not (free or framework):
        gpus, topology = "", ""  # they answer what the recipe leaves open
    layouts = _Layouts(gpus, framework, topology, free, where or (), allow or ())
    if layouts.are_free or asked == "cost":
        _over_layouts(entries, layouts, asked, gpu_of, json=json)
    layouts.expect_none()
    _fixed(paths, entries, asked, gpu_of, json=json)


def _asked(quantity: Asked | None, most: Most | None, fewest: Fewest | None, gpu_of: str) -> Quantity:
    """Quantity whose limit is asked. InputError if several are."""
    words = {"for": quantity, "max": most, "min": fewest}
    given = {f"--{option} {word.value}": _QUANTITIES[word.value] for option, word in words.items() if word is not None}
    if gpu_of:
        given[f"--gpu-of {gpu_of}"[:60]] = "machine"
    if len(given) > 1:
        raise InputError(Problem(", ".join(given), "expected one question at a time"))
    return next(iter(given.values()), "gpus")


def _over_layouts(entries: Sequence[Entry], layouts: _Layouts, quantity: Quantity, gpu_of: str, *,
                  json: bool) -> NoReturn:
    """Limits over all layouts of spaces around the scenarios."""
    from simcore.cli.output import print_fitted, print_json
    from simcore.cli.sheets.limits import free_limit_lines

    if problems := [problem for entry in entries for problem in entry.problems]:
        raise InputError(problems)
    found = [_over(layouts, entry.scenario, quantity, gpu_of) for entry in entries if entry.scenario]
    if json:
        print_json(found)
    else:
        print_fitted(lambda width: (line for limit in found for line in free_limit_lines(limit, width)))
    raise typer.Exit(int(any(limit.value is None for limit in found)))


def _over(layouts: _Layouts, scenario: Scenario, quantity: Quantity, gpu_of: str) -> FreeLimit:
    from simcore.cli.search import names_in
    from simcore.search.limits import cheapest, free_limit, free_machine

    if quantity == "cost":
        return cheapest(layouts.question(scenario, "cost"))
    question = layouts.question(scenario, "tokens")
    return free_machine(question, names_in(gpu_of)) if quantity == "machine" else free_limit(question, quantity)


def _fixed(paths: Sequence[str], entries: Sequence[Entry], quantity: Quantity, gpu_of: str, *, json: bool) -> NoReturn:
    """Limits of scenarios whose other keys stay."""
    from simcore.cli.output import complain, print_fitted, print_json
    from simcore.cli.sheets.limits import limit_lines

    problems = [problem for entry in entries for problem in entry.problems]
    if not entries:
        raise InputError(Problem(", ".join(paths), "holds no scenario"))
    found = [_of(entry.scenario, quantity, gpu_of) for entry in entries if entry.scenario is not None]
    problems += [Problem(limit.name, limit.problem) for limit in found if limit.problem]
    if json:
        print_json(found)
    elif found:
        print_fitted(partial(limit_lines, found))
    complain(problems)
    raise typer.Exit(2 if problems else int(any(limit.value is None for limit in found)))


def _of(scenario: Scenario, quantity: Quantity, gpu_of: str) -> Limit:
    from simcore.batch.machines import machine_of
    from simcore.batch.solve import limit_of
    from simcore.cli.search import names_in

    return machine_of(scenario, names_in(gpu_of)) if quantity == "machine" else limit_of(scenario, quantity)
