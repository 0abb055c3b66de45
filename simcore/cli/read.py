"""`rankscope read`: a measured run next to its scenario. Imports the engine when called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Unpack

import typer

from simcore.cli.recipes import FilesBeside, Gpus, SeqLen, Topology
from simcore.errors import InputError, Problem

if TYPE_CHECKING:
    from simcore.inputs.scenario import Scenario
    from simcore.results.report import Report
    from simcore.simulation.step import Asked
    from simcore.validation.logs.reading import Log
    from simcore.validation.out_of_memory.message import OutOfMemory
    from simcore.validation.out_of_memory.other_texts import Told
    from simcore.validation.side_by_side import Beside, SideBySide

__all__ = ["read", "sheet"]

MAX_TEXT: Final = 2**26
"""Bytes of a log; formats are looked for in all of its lines, which takes some seconds at this size."""


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
    from simcore.cli.output import print_json

    compared = _compared(measured, partial(_loaded, scenario, overrides or (), gpus, seq_len, topology, beside), rank)
    if json:
        print_json(compared)
        return
    for number, comparison in enumerate(compared):
        if number:
            typer.echo()
        for line in sheet(comparison):
            typer.echo(line)


def _compared(measured: Path, scenario: Callable[[], Scenario], rank: int | None) -> list[SideBySide]:
    """Comparisons of both; the file is read first, so that its problems are reported before the scenario's."""
    from simcore.inputs.document import read_bytes
    from simcore.validation.beside_snapshot import beside_dump
    from simcore.validation.beside_trace import beside_trace
    from simcore.validation.kernel_trace import is_trace, read_trace
    from simcore.validation.memory_snapshot import MAX_BYTES, read_dump
    from simcore.validation.plain_pickle import is_pickle

    content = read_bytes(measured, MAX_BYTES)
    if is_pickle(content):
        dump = read_dump(content, str(measured))
        return [beside_dump(str(measured), dump, _simulated(scenario()), rank)]
    if is_trace(content):
        return [beside_trace(str(measured), read_trace(content, str(measured)), _simulated(scenario()))]
    log, messages, others = _texts(content, str(measured))
    asked = scenario()
    return [*_of_log(str(measured), log, asked, rank), *_of_failure(str(measured), messages, others, asked, rank)]


def _texts(content: bytes, where: str) -> tuple[Log | None, list[OutOfMemory], list[Told]]:
    """(log, messages of torch's allocator, other texts about memory); InputError if there is none of them."""
    from simcore.validation.logs.registry import FORMATS, read_log
    from simcore.validation.out_of_memory.message import read_messages
    from simcore.validation.out_of_memory.other_texts import read_others

    if len(content) > MAX_TEXT:
        message = f"expected a log of at most {MAX_TEXT:,} bytes, got {len(content):,}: keep the lines of some steps"
        raise InputError(Problem(where, message))
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"  # PowerShell's `>` writes UTF-16
    text = content.decode(encoding, errors="replace")
    log, messages, others = read_log(text), read_messages(text), read_others(text)
    if log is None and not messages and not others:
        message = ("expected a pickled memory snapshot or a trace of PyTorch, the text of a CUDA out-of-memory error, "
                   f"or a log of {', '.join(form.example for form in FORMATS)}; got none of them")
        raise InputError(Problem(where, message))
    return log, messages, others


def _of_log(where: str, log: Log | None, scenario: Scenario, rank: int | None) -> Iterator[SideBySide]:
    from simcore.validation.beside_log import beside_log

    if log is not None:
        yield beside_log(where, log, _simulated(scenario), rank)


def _of_failure(where: str, messages: Sequence[OutOfMemory], others: Sequence[Told], scenario: Scenario,
                rank: int | None) -> Iterator[SideBySide]:
    """Comparison of a failure; with advice unless the simulated step fits."""
    from simcore.batch.advice import advise
    from simcore.validation.beside_failure import POSTINGS, beside_failure

    if not messages and not others:
        return
    report = _simulated(scenario, detail=True, postings=POSTINGS)
    comparison = beside_failure(where, messages, others, report, rank)
    advice = () if report.verdict == "fits" else advise(scenario)
    yield comparison.model_copy(update={"advice": advice})


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


def _simulated(scenario: Scenario, **asked: Unpack[Asked]) -> Report:
    from simcore.simulate import simulate

    report = simulate(scenario, **asked)
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    return report


def sheet(compared: SideBySide) -> Iterator[str]:
    """Lines of text for a terminal: measured and simulated quantities of one rank side by side, then notes."""
    from simcore.cli.sheets.tables import changes, plain

    yield plain(f"{compared.source} {compared.measured} beside {compared.scenario}, ranks {', '.join(compared.ranks)}")
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
