"""Problems of a job beyond the first that stops it: those that it would meet once what is known already was mended.

[Note: what else is wrong]
Rules are asked in an order, and the first that is broken ends the questions. So the keys that are known to be wrong are
put aside: a key of the mesh is one, a batch is the next multiple, a length a usual one, any other key is left out. What
the job is refused for then stands beside what was known, unless it is only there because a key was put aside, or goes
with another value in its place (`other_values.py`). Keys that others are about (model, machine, framework, method) have
nothing in their place: where one of them is wrong, the questions end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from simcore.errors import Problem, RankscopeError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.inputs.document import Document
from simcore.inputs.loading import Entry, entry_of
from simcore.inputs.scenario import Scenario
from simcore.inputs.sweep import split_key
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.lint.other_values import independent
from simcore.recipes.imported import Imported
from simcore.recipes.model_file import problems_of_model
from simcore.results.report import ProblemRow, Report
from simcore.simulate import check

__all__ = ["answered_in_full", "expect_all", "in_full", "stage_keys", "with_all_problems", "without"]

_ROUNDS: Final = 6
"""Times that a job is asked at most."""
_STAY: Final = ("name", "workload", "model", "topology", "framework", "framework_version", "implementation",
                "training.method")
"""Keys that others are about, which nothing can take the place of."""
_STAGES: Final = "training.pipeline"
_LENGTH: Final = "training.seq_len"
_USUAL_LENGTH: Final = 3840
"""Tokens, a multiple of what most degrees and kernels ask for, in the place of a sequence length that is wrong."""
_MULTIPLE: Final = re.compile(r"global_batch_size: expected a multiple of (\d+) .*, got (\d+)$")
_IDLE: Final = re.compile(r"changes? nothing|means? nothing|mean nothing|the key is missing|"
                          r"expected lengths: packed beside it")
"""Words about a key that are there only because another was put aside."""


def in_full(entry: Entry) -> Entry:
    """An entry without a scenario with all problems of its file, each at its line; others as they are."""
    if entry.document is None:
        return entry
    known = {problem.message for problem in entry.problems}
    return replace(entry, problems=(*entry.problems, *_further(entry.document, known)))


def answered_in_full(work: Callable[..., Report], scenario: Scenario, **asked: Any) -> Report:
    """Report that `work` makes of a scenario; of a refused one that is of no sweep with all problems of its file."""
    report = work(scenario, **asked)
    if not report.problems or scenario.swept or report.status == "ok":
        return report
    known = {row.message for row in report.problems}
    return report.model_copy(update={
        "problems": (*report.problems, *map(_row, _further(scenario.document, known)))})


def expect_all(imported: Imported) -> None:
    """Raises what keeps a recipe from being a scenario, with what the scenario would be refused for besides.

    Raises InputError or NotYet as `Imported.expect_complete`; nothing where that raises nothing.
    """
    try:
        imported.expect_complete()
    except RankscopeError as error:
        known = {problem.message for problem in error.problems}
        if imported.questions:  # no layout yet
            more = [one for one in problems_of_model(imported) if one.message not in known]
        else:
            more = [one for one in _further(imported.document(), known) if not _IDLE.search(one.message)]
        raise type(error)([*error.problems, *more]) from None


def _further(document: Document, known: set[str]) -> Iterator[Problem]:
    """Problems of a file beyond those with a message that is known, each at its line."""
    keyed = Document(document.path, document.data, places=dict(_places(document.data, ())))
    first = Report(name="", scenario={}, status="error", problems=tuple(_problems(keyed)))
    for row in with_all_problems(keyed, first).problems:
        if row.message not in known:
            key = _key(row)
            path = split_key(key)
            yield Problem(row.where.replace(key, document.where(path), 1), row.message, row.rule)


def _places(values: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    for key, value in values.items():
        yield (*path, key), dotted((*path, key))
        if isinstance(value, dict):
            yield from _places(value, (*path, key))


def with_all_problems(document: Document, report: Report) -> Report:
    """The report of a refused job with what else is wrong in it, see [Note: what else is wrong].

    `document`: of keys, so that each problem's place is a dotted key.
    """
    rows, newest, aside, wrong = list(report.problems), list(report.problems), set[str](), document
    for _ in range(_ROUNDS):
        mended = _mended(document, newest, aside)
        if mended is None:
            break
        document = mended
        told = {(row.where, row.message) for row in rows}
        newest = [row for row in _problems(document) if (row.where, row.message) not in told]
        shown = [row for row in newest if not _IDLE.search(row.message) and _key(row) not in aside]
        rows += independent(shown, document, wrong, aside, _problems) if shown else ()
    return report.model_copy(update={"problems": tuple(rows)})


def _problems(document: Document) -> list[ProblemRow]:
    entry = entry_of(document)
    if entry.scenario is None:
        return [_row(problem) for problem in entry.problems]
    return list(check(entry.scenario, rules_only=True).problems)


def _row(problem: Problem) -> ProblemRow:
    return ProblemRow(where=problem.where, message=problem.message, rule=problem.rule)


def _mended(document: Document, problems: Iterable[ProblemRow], aside: set[str]) -> Document | None:
    """The job with each key that a problem is about put aside; None where one of them cannot be, or none is new.

    `aside`: keys that were put aside, which gets the new ones.
    """
    named = {key: row for row in problems if (key := _key(row))}
    if not named or any(key in aside or not _can_go(document, key) for key in named):
        return None
    aside.update(named)
    for key, row in named.items():
        document = _put_aside(document, key, row.message)
    return document


def _key(row: ProblemRow) -> str:
    return row.where.split(" ")[0]


def _can_go(document: Document, key: str) -> bool:
    """True for a key with a value of its own; a problem of a key that the job leaves out has the place around it."""
    is_about = any(key == one or key.startswith(f"{one}.") for one in _STAY)
    return not is_about and not isinstance(_value(document.data, key), dict | None)


def _put_aside(document: Document, key: str, message: str) -> Document:
    """The job with another value of one key, and without what means nothing then."""
    if found := _MULTIPLE.search(message):
        unit, batch = map(int, found.groups())
        return document.with_value(split_key(key), -(-batch // unit) * unit, key)
    if key == _LENGTH:
        return document.with_value(split_key(key), _USUAL_LENGTH, key)
    first, _, axis = key.partition(".")
    if first == "mesh" and axis:
        document = document.with_value(("mesh",), {**document.data["mesh"], axis: None if axis == "etp" else 1}, "mesh")
        for other in {"pp": stage_keys(document), "ep": ("mesh.etp",)}.get(axis, ()):
            document = without(document, other)
        return document
    return without(document, key)


def stage_keys(document: Document) -> Sequence[str]:
    """Keys of the job that mean nothing with one stage: of the pipeline, and options of its framework."""
    training, options, name = (document.data.get(key) for key in ("training", "framework_options", "framework"))
    keys = [_STAGES] if isinstance(training, dict) and "pipeline" in training else []
    if isinstance(options, dict) and name in known_frameworks():
        keys += (f"framework_options.{one}" for one in framework_adapter(name).of_stages if one in options)
    return keys


def without(document: Document, key: str) -> Document:
    """The job without a key."""
    first, *rest = map(str, split_key(key))
    value = deepcopy(document.data.get(first))
    inner = _value({first: value}, ".".join((first, *rest[:-1])))
    if not rest:
        value = None
    elif isinstance(inner, dict):
        inner.pop(rest[-1], None)
    return document.with_value((first,), value, first)


def _value(data: Any, key: str) -> Any:
    """Value of a dotted key; None where there is none."""
    for part in split_key(key):
        data = data.get(part) if isinstance(data, dict) else None
    return data
