"""A measured run, as the content of a file, beside its scenario: a snapshot, a log, the text of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Unpack

from simcore.batch.advice import advise
from simcore.errors import InputError, Problem
from simcore.inputs.scenario import Scenario
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.simulation.step import Asked
from simcore.validation.beside_failure import POSTINGS, beside_failure
from simcore.validation.beside_log import beside_log
from simcore.validation.beside_snapshot import beside_dump
from simcore.validation.beside_trace import beside_trace
from simcore.validation.kernel_trace import is_trace, read_trace
from simcore.validation.logs.job_told import BATCH, job_told
from simcore.validation.logs.lines import plain_text
from simcore.validation.logs.reading import Log
from simcore.validation.logs.registry import FORMATS, read_log
from simcore.validation.memory_snapshot import Dump, read_dump
from simcore.validation.other_job import OTHER, differences, other_program
from simcore.validation.out_of_memory.message import OutOfMemory, read_messages
from simcore.validation.out_of_memory.other_texts import Told, read_others
from simcore.validation.plain_pickle import is_pickle
from simcore.validation.side_by_side import SideBySide

__all__ = ["beside_scenario"]

MAX_TEXT: Final = 2**26
"""Bytes of a log; formats are looked for in all of its lines, which takes some seconds at this size."""


def beside_scenario(content: bytes, where: str, scenario: Callable[[], Scenario], rank: int | None = None,
                    seen: Callable[[Dump], None] = lambda dump: None) -> list[SideBySide]:
    """Comparisons of a measured run with its scenario: one of a snapshot or log, and one of a failure that it tells.

    `content`: of the file `where`; it is read first, so that its problems are reported before the scenario's. `rank`:
    to compare; None: the fullest. `seen`: called with what a snapshot holds. InputError for a file that is none of
    these, or a scenario without a result.
    """
    if is_pickle(content):
        dump = read_dump(content, where)
        seen(dump)
        return [beside_dump(where, dump, _simulated(scenario()), rank)]
    if is_trace(content):
        return [beside_trace(where, read_trace(content, where), _simulated(scenario()))]
    text = _text(content, where)
    log, messages, others = _texts(text, where)
    asked = scenario()
    differs = (*(other_program(log.trainer, asked) if log else ()), *differences(job_told(plain_text(text)), asked))
    try:
        found = [*_of_log(where, log, asked, rank), *_of_failure(where, messages, others, asked, rank)]
    except InputError as error:
        raise InputError([*error.problems, *(Problem(where, f"{OTHER} {one}") for one in differs)]) from None
    return [one.model_copy(update={"differs": (*one.differs, *_new(differs, one.differs))}) for one in found]


def _new(differs: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """Differences but the batch where that is known from the lines of steps."""
    return (one for one in differs if not (one.startswith(BATCH) and any(each.startswith(BATCH) for each in known)))


def _text(content: bytes, where: str) -> str:
    if len(content) > MAX_TEXT:
        message = f"expected a log of at most {MAX_TEXT:,} bytes, got {len(content):,}: keep the lines of some steps"
        raise InputError(Problem(where, message))
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"  # PowerShell's `>` writes UTF-16
    return content.decode(encoding, errors="replace")


def _texts(text: str, where: str) -> tuple[Log | None, list[OutOfMemory], list[Told]]:
    """(log, messages of torch's allocator, other texts about memory); InputError if there is none of them."""
    log, messages, others = read_log(text), read_messages(text), read_others(text)
    if log is None and not messages and not others:
        message = ("expected a pickled memory snapshot or a trace of PyTorch, the text of a CUDA out-of-memory error, "
                   f"or a log of {', '.join(form.example for form in FORMATS)}; got none of them")
        raise InputError(Problem(where, message))
    return log, messages, others


def _of_log(where: str, log: Log | None, scenario: Scenario, rank: int | None) -> Iterator[SideBySide]:
    if log is not None:
        yield beside_log(where, log, _simulated(scenario), rank)


def _of_failure(where: str, messages: Sequence[OutOfMemory], others: Sequence[Told], scenario: Scenario,
                rank: int | None) -> Iterator[SideBySide]:
    """Comparison of a failure; with advice unless the simulated step fits."""
    if not messages and not others:
        return
    report = _simulated(scenario, detail=True, postings=POSTINGS)
    comparison = beside_failure(where, messages, others, report, rank)
    advice = () if report.verdict == "fits" else advise(scenario)
    yield comparison.model_copy(update={"advice": advice})


def _simulated(scenario: Scenario, **asked: Unpack[Asked]) -> Report:
    report = simulate(scenario, **asked)
    if report.status != "ok":
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems])
    return report
