"""`rankscope read`: a measured run next to its scenario. Imports the engine when called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.results.report import Report
    from simcore.validation.side_by_side import Beside, SideBySide

__all__ = ["read", "sheet"]


def read(
    measured: Annotated[Path, typer.Argument(
        help="A memory snapshot of PyTorch (.pickle), or a log of torchtitan, Megatron-LM or Megatron-Bridge.")],
    scenario: str,
    *,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Rank to compare; omitted: the fullest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print both as JSON, nothing else.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")] = None,
) -> None:
    """Compare a measured run with its scenario: memory, step time and throughput, as far as measured.

    Exit code 0 however they differ; 2 if the run cannot be read or the scenario has no result. With --json a list of
    one comparison is printed.
    """
    from simcore.cli.output import print_json

    comparison = _compared(measured, scenario, rank, overrides or ())
    if json:
        print_json([comparison])
        return
    for line in sheet(comparison):
        typer.echo(line)


def _compared(measured: Path, scenario: str, rank: int | None, overrides: Sequence[str]) -> SideBySide:
    """Comparison of both; the file is read first, so that its problems are reported before anything is simulated."""
    from simcore.inputs.document import read_bytes
    from simcore.validation.memory_snapshot import MAX_BYTES, read_dump
    from simcore.validation.plain_pickle import is_pickle
    from simcore.validation.side_by_side import beside_dump, beside_log
    from simcore.validation.training_log import read_log

    content = read_bytes(measured, MAX_BYTES)
    if is_pickle(content):
        dump = read_dump(content, str(measured))
        return beside_dump(str(measured), dump, _simulated(scenario, overrides), rank)
    log = read_log(content.decode("utf-8", errors="replace"))
    if log is None:
        message = ("expected a pickled memory snapshot of PyTorch, or a log with lines of torchtitan (step: 1 .. "
                   "memory: 12.3GiB(..)) or Megatron ([Rank 0] (after 1 iterations) memory (MB) | .., "
                   "elapsed time per iteration (ms): ..); got neither")
        raise InputError(Problem(str(measured), message))
    return beside_log(str(measured), log, _simulated(scenario, overrides), rank)


def _simulated(path: str, overrides: Sequence[str]) -> Report:
    from simcore.inputs.loading import load
    from simcore.simulate import simulate

    scenarios = load(path, overrides)
    if len(scenarios) != 1:
        message = (f"reads beside one scenario, this has {len(scenarios)}: --set sweep=null, "
                   "and --set for what it sweeps")
        raise InputError(Problem(path, message))
    report = simulate(scenarios[0])
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    return report


def sheet(compared: SideBySide) -> Iterator[str]:
    """Lines of text for a terminal: measured and simulated quantities of one rank side by side, then notes."""
    from simcore.cli.sheets.tables import plain

    yield plain(f"{compared.source} {compared.measured} beside {compared.scenario}, ranks {', '.join(compared.ranks)}")
    yield from _table(("", "measured", "simulated", "difference", ""), compared.quantities)
    if compared.groups:
        yield ""
        yield from _table(("at the highest moment", "measured", "simulated", "difference", ""), compared.groups)
    if compared.notes:
        yield ""
    yield from (plain(note) for note in compared.notes)


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
