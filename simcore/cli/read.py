"""`rankscope read`: a measured run next to its scenario. Imports the engine when called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.cli.recipes import FilesBeside, Gpus, SeqLen, Topology
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.inputs.scenario import Scenario
    from simcore.validation.side_by_side import Beside, SideBySide

__all__ = ["read", "sheet"]


def read(
    measured: Annotated[Path, typer.Argument(
        help="A memory snapshot (.pickle) or trace (.json, .json.gz) of PyTorch, a log of a trainer, or the text of an "
        "out-of-memory error.")],
    scenario: str,
    *,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Rank to compare; omitted: the fullest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print both as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
    gpus: Gpus = None,
    seq_len: SeqLen = None,
    topology: Topology = "",
    beside: FilesBeside = None,
) -> None:
    """Compare a measured run with its scenario or recipe: memory, step time and throughput, as far as measured.

    Logs are recognised by what they say: Automodel, Megatron, torchtitan, DeepSpeed, the Hugging Face Trainer, TRL,
    axolotl, NeMo RL, verl. For a run that ended out of memory: its sizes beside those of the phase that failed, the
    simulated tensors of the size that was asked for, and changes that make it fit. Exit code 0 however they differ; 2
    if the run cannot be read or the scenario has no result. With --json a list of comparisons is printed: of a log that
    ends out of memory two, its log's first.
    """
    from simcore.batch.measured import beside_scenario
    from simcore.cli.output import print_json
    from simcore.inputs.document import read_bytes
    from simcore.validation.memory_snapshot import MAX_BYTES

    compared = beside_scenario(read_bytes(measured, MAX_BYTES), str(measured), partial(
        _loaded, scenario, overrides or (), gpus, seq_len, topology, beside), rank)
    if json:
        print_json(compared)
        return
    for number, comparison in enumerate(compared):
        if number:
            typer.echo()
        for line in sheet(comparison):
            typer.echo(line)


def _loaded(path: str, overrides: Sequence[str], gpus: int | None, seq_len: int | None, topology: str,
            beside: Sequence[str] | None) -> Scenario:
    from simcore.cli.recipes import read_entries

    entries = read_entries([path], overrides, gpus, seq_len, topology, beside=beside)
    if problems := [problem for entry in entries for problem in entry.problems]:
        raise InputError(problems)
    scenarios = [entry.scenario for entry in entries if entry.scenario]
    if len(scenarios) != 1:
        message = (f"reads beside one scenario, this has {len(scenarios)}: --set sweep=null, "
                   "and --set for what it sweeps")
        raise InputError(Problem(path, message))
    return scenarios[0]


def sheet(compared: SideBySide) -> Iterator[str]:
    """Lines of text for a terminal: measured and simulated quantities of one rank side by side, then notes."""
    from simcore.cli.sheets.tables import changes, plain
    from simcore.validation.other_job import OTHER

    yield plain(f"{compared.source} {compared.measured} beside {compared.scenario}, ranks {', '.join(compared.ranks)}")
    yield from (plain(f"{OTHER} {one}") for one in compared.differs)
    yield from map(plain, _failure(compared))
    yield from _table(("", "measured", "simulated", "difference", ""), compared.quantities)
    if compared.groups:
        yield ""
        yield from _table(("at the highest moment", "measured", "simulated", "difference", ""), compared.groups)
    if compared.asked:
        yield ""
        yield from map(plain, _asked(compared))
    if compared.notes:
        yield ""
    yield from (plain(note) for note in compared.notes)
    if compared.advice:
        yield ""
        yield from map(str, changes(compared.scenario, compared.advice))


def _failure(compared: SideBySide) -> Iterator[str]:
    """Line with what failed, where, and in which phase; none for a run that did not fail."""
    failure = compared.failure
    if failure is None or (failure.asked_bytes is None and not failure.phase):
        return
    who = [f"rank {failure.rank}" if failure.rank is not None else "", f"GPU {failure.device}" if
           failure.device is not None else "", failure.phase and f"in {failure.phase}", failure.place]
    many = f" ({failure.num_failed} messages)" if failure.num_failed > 1 else ""
    yield f"out of memory{many}: {', '.join(filter(None, who))}"


def _asked(compared: SideBySide) -> Iterator[str]:
    """Lines with the simulated tensors of the size that was asked for."""
    from simcore.units import format_bytes

    size = compared.failure.asked_bytes if compared.failure else 0
    yield f"simulated tensors of the {format_bytes(size or 0)} asked for:"
    for row in compared.asked:
        many = f"{row.times} times, {row.in_phase} in this phase" if row.times > 1 else (
            "in this phase" if row.in_phase else "in another phase")
        shape = f", {row.shape}" if row.shape else ""
        yield f"  {format_bytes(row.num_bytes):>10}  {row.owner} ({row.category}){shape}; {many}"


def _table(heads: Sequence[str], rows: Sequence[Beside]) -> Iterator[str]:
    """Lines of a table with columns as wide as their widest cell; numbers are right-aligned."""
    from simcore.cli.sheets.tables import plain

    cells = [heads, *([plain(text) for text in _cells(row)] for row in rows)]
    wide = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    for first, *numbers, last in cells:
        middle = "  ".join(f"{text:>{width}}" for text, width in zip(numbers, wide[1:], strict=False))
        yield f"{first:{wide[0]}}  {middle}  {last}".rstrip()


def _cells(row: Beside) -> tuple[str, ...]:
    gap = "" if row.difference is None else f"{'+' if row.difference > 0 else ''}{_shown(row.difference, row.unit)}"
    share = "" if row.error is None else f" ({row.error:+.1%})"
    return (row.what, _shown(row.measured, row.unit), _shown(row.simulated, row.unit), gap + share, row.told)


def _shown(value: float | None, unit: str) -> str:
    from simcore.units import format_bytes, format_seconds

    if value is None:
        return "-"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    return f"{value:.1%}" if unit == "share" else f"{value:,.1f}"
