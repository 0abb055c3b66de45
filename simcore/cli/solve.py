"""`rankscope solve`: the fewest GPUs, the largest micro batch, the longest sequence. Imports the engine when called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from simcore.cli.recipes import SeqLen
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcore.inputs.loading import Entry
    from simcore.results.limit import Limit

__all__ = ["limits", "solve"]


class Asked(StrEnum):
    """Choice of the quantity whose limit is asked: GPUs, sequences of a micro batch, or tokens of a sequence."""

    GPUS = "gpus"
    MICRO_BATCH = "micro_batch"
    SEQUENCE = "sequence"


def solve(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Scenario files, folders or globs.")],
    *,
    quantity: Annotated[Asked, typer.Option("--for", help="Quantity whose limit is asked.")] = Asked.GPUS,
    gpus: Annotated[str, typer.Option(metavar="N,..", help="Only these numbers of GPUs that train; with --free.")] = "",
    framework: Annotated[str, typer.Option(metavar="NAME,..", help="Frameworks to try.")] = "",
    topology: Annotated[str, typer.Option(metavar="NAME,..", help="Machines to try.")] = "",
    free: Annotated[list[str] | None, typer.Option(
        metavar="KEY[=V,..]", help="Keys of the layout that are free, as in search, such as mesh.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of limits as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    seq_len: SeqLen = None,
) -> None:
    """Find the fewest GPUs, the largest micro batch or the longest sequence with which scenarios fit.

    All other keys stay: GPUs are added on the data-parallel axis. With --free, --framework or --topology all their
    layouts are tried, and the best at the limit are listed. Exit code 0; 1 if some scenario fits with no value; 2 for
    wrong input, or a scenario that is refused with every value.
    """
    from simcore.cli.recipes import read_entries
    from simcore.cli.search import first_of

    entries = read_entries(paths, overrides or (), *first_of(gpus, seq_len, topology), only=False)
    if free or framework or topology:
        _over_layouts(entries, (gpus, framework, topology), free, quantity, json=json)
    elif gpus:
        raise InputError(Problem(f"--gpus {gpus}"[:120], "expected --free, --framework or --topology with it"))
    _fixed(paths, entries, quantity, json=json)


def _over_layouts(entries: Sequence[Entry], names: tuple[str, str, str], free: Sequence[str] | None, quantity: Asked, *,
                  json: bool) -> NoReturn:
    """Limits over all layouts of spaces around the scenarios. `names`: texts of GPUs, frameworks and topologies."""
    from simcore.cli.output import print_json, print_shown
    from simcore.cli.search import asked_space, chosen_objectives, names_in
    from simcore.cli.sheets.found import limit_lines
    from simcore.search.limits import free_limit
    from simcore.search.search import Search

    if problems := [problem for entry in entries for problem in entry.problems]:
        raise InputError(problems)
    numbers, frameworks, topologies = names[0], names_in(names[1]), names_in(names[2])
    objectives, found = chosen_objectives("tokens", ["peak"]), []
    for scenario in (entry.scenario for entry in entries if entry.scenario):
        space = asked_space(scenario, numbers, frameworks, topologies, free)
        found.append(free_limit(Search(space, objectives), quantity.value))
    if json:
        print_json(found)
    else:
        print_shown(*(line for limit in found for line in limit_lines(limit)))
    raise typer.Exit(int(any(limit.value is None for limit in found)))


def _fixed(paths: Sequence[str], entries: Sequence[Entry], quantity: Asked, *, json: bool) -> NoReturn:
    """Limits of scenarios whose other keys stay."""
    from simcore.batch.solve import limit_of
    from simcore.cli.output import complain, print_json, print_shown

    problems = [problem for entry in entries for problem in entry.problems]
    if not entries:
        raise InputError(Problem(", ".join(paths), "holds no scenario"))
    found = [limit_of(entry.scenario, quantity.value) for entry in entries if entry.scenario is not None]
    problems += [Problem(limit.name, limit.problem) for limit in found if limit.problem]
    if json:
        print_json(found)
    elif found:
        print_shown(*limits(found))
    complain(problems)
    raise typer.Exit(2 if problems else int(any(limit.value is None for limit in found)))


def limits(found: Sequence[Limit]) -> Iterator[RenderableType]:
    """Table with one row a scenario: the value that surely fits, the likely one, the value beyond and its peak.

    All limits are of one quantity.
    """
    from simcore.cli.sheets.tables import plain, plain_table
    from simcore.results.limit import QUANTITIES

    table = plain_table(QUANTITIES[found[0].quantity], "surely", "likely", "at best", "peak", "next", left=("next",))
    for limit in found:
        batch = limit.keys.get("training.global_batch_size")
        name = limit.name if batch is None else f"{limit.name}, global batch {batch:,}"
        table.add_row(plain(name), *map(_count, (limit.value, limit.likely, limit.possible)),
                      _bytes(limit.peak_bytes), plain(_beyond(limit)))
    yield table


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _bytes(num_bytes: int | None) -> str:
    from simcore.units import format_bytes

    return "" if num_bytes is None else format_bytes(num_bytes)


def _beyond(limit: Limit) -> str:
    if limit.problem:
        return "refused with every value"
    if limit.beyond is None:
        return "none tried beyond"
    return f"{limit.beyond:,}: {limit.beyond_verdict}, {_bytes(limit.beyond_bytes)}"
