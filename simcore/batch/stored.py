"""Results of earlier commands, read again: `run --json`, `results.jsonl` of a folder, its unfinished `.part`."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.bounds import MAX_RESULTS
from simcore.inputs.document import read_lines, read_text
from simcore.results.report import REPORTS, Report

__all__ = ["MAX_BYTES", "for_a_list", "read_results", "results_in", "uncollected"]

MAX_BYTES: Final = 2**28
"""Size of a file of results that is one JSON text."""
_NO_RESULTS: Final = "is no result of `rankscope run --json`, nor a results.jsonl"
_CUT: Final = "the last line is cut off, as of a run that was stopped: without it the lines before can be read"
_LARGE: Final = re.compile(r"e\+?\d\d\d"), re.compile(r"E\+?\d\d\d")
"""Numbers with an exponent that may pass what a float holds."""


def read_results(path: Path) -> list[Report]:
    """Reports in a file of an earlier `--json` output, or in `results.jsonl` or its `.part`, in the file's order.

    An incomplete last line of a `.part` is dropped. InputError for text that is not a result (with the number of the
    line, except for `--json`), and for a file that cannot be read.
    """
    with uncollected():
        return [*results_in(path)]


def results_in(path: Path, kept: Callable[[Report], Report] = lambda report: report) -> Iterator[Report]:
    """Yields what `read_results` returns, of `results.jsonl` a line at a time; `kept`: what to keep of each."""
    if path.suffix not in (".jsonl", ".part"):
        yield from map(kept, _parsed(read_text(path, MAX_BYTES), str(path), _NO_RESULTS))
        return
    lines: Iterable[str] = read_lines(path, MAX_RESULTS)
    if path.suffix == ".part":  # of a batch that runs or was killed: its last line may be incomplete
        lines = (line for line in lines if line.endswith("\n"))
    shared: dict[Any, Any] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip("\n"):
            refusal = _NO_RESULTS if number == 1 or line.endswith("\n") else _CUT
            yield from (_with_shared(kept(report), shared) for report in _parsed(line, f"{path}:{number}", refusal))


@contextmanager
def uncollected() -> Iterator[None]:
    """Context without garbage collection: results are trees, of which it would look at all again and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def for_a_list(report: Report) -> Report:
    """The report with what a page of many shows of it alone, a third of the memory.

    Kept are the rank with the peak, its peak and traffic; left out its parts at rest, all other ranks, kernels,
    collectives and limits of the step, owners of host memory, assumptions and advice.
    """
    rank, time, host = report.peak_rank, report.time, report.host
    phases = () if host is None else tuple(phase.model_copy(update={"by_owner": {}}) for phase in host.phases)
    return report.model_copy(update={
        "ranks": () if rank is None else (rank.model_copy(update={"at_rest": {}, "memory": None}),),
        "time": time and time.model_copy(update={"kernels": (), "communication": (), "roofline": None}),
        "host": host and host.model_copy(update={"phases": phases}),
        "assumptions": (), "communicators": (), "advice": (), "detail": None})


def _with_shared(report: Report, shared: dict[Any, Any]) -> Report:
    """The report with texts and values that many results have alike as one object, which saves memory."""
    assumptions = tuple(shared.setdefault(one, one) for one in report.assumptions)
    communicators = tuple(shared.setdefault(one, one) for one in report.communicators)
    known = report.evidence and report.evidence.model_dump_json()  # it may hold a mapping, which has no hash
    blocks = {key: shared.setdefault(repr(value), value) if isinstance(value, dict) else value
              for key, value in report.scenario.items()}
    return report.model_copy(update={"assumptions": assumptions, "communicators": communicators, "scenario": blocks,
                                     "evidence": shared.setdefault(known, report.evidence)})


def _parsed(text: str, where: str, refusal: str) -> Iterable[Report]:
    """Reports in JSON: of one, or of a list. InputError, with the words `refusal`, for anything else."""
    try:
        if _has_odd_number(text):
            text = json.dumps(json.loads(text), allow_nan=False)
        if text.lstrip()[:1] == "[":
            return REPORTS.validate_json(text)
        return [Report.model_validate_json(text)]
    except (ValueError, RecursionError):
        raise InputError(Problem(where, refusal)) from None


def _has_odd_number(text: str) -> bool:
    """True if a number of the text may be infinite or none, which JSON's readers take differently."""
    return "NaN" in text or "Infinity" in text or any(large.search(text) for large in _LARGE)
