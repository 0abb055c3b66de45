"""Kinds of questions that the page asks, each a function from a question to the bytes of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Any, Final

from simcore.batch.advice import work
from simcore.batch.run import attempt
from simcore.errors import InputError, Problem
from simcore.lint.all_problems import answered_in_full, in_full, with_all_problems
from simcore.simulation.explanation import class_of, explain_peak, explain_step, explain_trainable
from simcore.studio import exchange, remedies
from simcore.studio.catalogue import catalogue, options, start
from simcore.studio.degrees import degrees
from simcore.studio.question import Question, price_of
from simcore.studio.views import figure, memory, pictures, priced, view
from simcore.validation.memory_snapshot import MAX_CURVE
from viz.charts.class_bars import Mark
from viz.charts.measured import Measured

__all__ = ["ANSWERS", "warm"]

_EXPLAINED: Final = ("peak", "step", "trainable")
_OPENED: Final = ("memory", "placement", "streams")
"""Pictures that are drawn in full only once a user opens them."""
_FEW_SPANS: Final = 1200
"""Intervals of the streams over all classes, of each at least as many; more are drawn where a user opens them."""
_MOST_MARKS: Final = 4

def warm() -> None:
    """Answers the first question of a page, so that what it needs is loaded."""
    question = Question.of({"values": start()})
    _view(question)
    _memory(question)
    _pictures(question)


def _answer(question: Question) -> bytes:
    """The bytes that `rankscope run --json` prints for a file of this text; with advice as there, unless refused."""
    advise = question.rest.get("advise")
    if advise is not None and not isinstance(advise, bool):
        raise InputError(Problem("advise", "expected true or false"))
    entries = [in_full(entry) for entry in question.entries()]
    simulated = partial(answered_in_full, work(len(entries), asked=advise))
    lines = ",\n".join(attempt(entry, simulated).report.model_dump_json() for entry in entries)
    return f"[\n{lines}\n]\n".encode()


def _one(question: Question, **asked: Any) -> Any:
    from simcore.simulate import simulate

    (entry, *_) = question.entries()
    return attempt(entry, partial(simulate, **asked)).report


def _view(question: Question) -> bytes:
    report = _one(question)
    if report.status != "ok" and question.text is None:
        report = with_all_problems(question.document(), report)
    return _json(view(priced(report, price_of(question)), _marks(question.rest.get("marks"))))


def _marks(given: Any) -> list[Mark]:
    """Measured sizes that the bars show; InputError for something else."""
    try:
        marks = [Mark(str(one["words"])[:80], float(one["num_bytes"])) for one in given or ()]
    except (TypeError, KeyError, ValueError, OverflowError):
        raise InputError(Problem("marks", "expected words and num_bytes of each")) from None
    if len(marks) > _MOST_MARKS or not all(isfinite(mark.num_bytes) for mark in marks):
        raise InputError(Problem("marks", f"expected at most {_MOST_MARKS}, each of a finite num_bytes"))
    return marks


def _measured(question: Question) -> Measured:
    """Sizes that a dropped run measured; InputError for something else."""
    curve = question.rest.get("curve", [])
    if not isinstance(curve, list) or len(curve) > MAX_CURVE or not all(
            type(size) in (int, float) and size >= 0 for size in curve):
        raise InputError(Problem("curve", f"expected at most {MAX_CURVE} numbers of bytes"))
    return Measured(tuple(map(float, curve)), tuple(_marks(question.rest.get("marks"))))


def _memory(question: Question) -> bytes:
    return _json(memory(_one(question, series=True), _measured(question)))


def _pictures(question: Question) -> bytes:
    opened = question.rest.get("opened", [])
    if not isinstance(opened, list) or not all(one in _OPENED for one in opened):
        raise InputError(Problem("opened", f"expected a list out of {', '.join(_OPENED)}"))
    needs_detail = not {"memory", "placement"}.isdisjoint(opened)
    asked = {"detail": needs_detail, "streams": True, "spans": None if "streams" in opened else _FEW_SPANS}
    return _json(pictures(_one(question, **asked), opened, _measured(question)))


def _figure(question: Question) -> bytes:
    """The bars of the classes, as one SVG text that stands alone."""
    return _json({"svg": figure(_one(question))})


def _explained(question: Question) -> bytes:
    """Steps from a number of the job to what it is made of."""
    what = question.rest.get("what", "peak")
    if what not in _EXPLAINED:
        raise InputError(Problem("what", f"expected {', '.join(_EXPLAINED)}"))
    report = _one(question, detail=True)
    if report.status != "ok" or report.detail is None:
        raise InputError([Problem(row.where, row.message, row.rule) for row in report.problems]
                         or [Problem("", "there is no single training step to explain")])
    step = explain_step(report) if what == "step" else (
        explain_trainable if what == "trainable" else explain_peak)(report, *class_of(report, None))
    return _json(step.model_dump())


def _options(question: Question) -> bytes:
    framework = question.rest.get("framework")
    if not isinstance(framework, str):
        raise InputError(Problem("framework", "expected the name of a framework"))
    return _json({"options": options(framework)})


def _of(made: Callable[[Question], Mapping[str, Any]]) -> Callable[[Question], bytes]:
    return lambda question: _json(made(question))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


ANSWERS: Final[Mapping[str, Callable[[Question], bytes]]] = {
    "answer": _answer, "view": _view, "memory": _memory, "pictures": _pictures, "explain": _explained,
    "scenario": _of(exchange.scenario_file), "import": _of(exchange.imported), "convert": _of(exchange.recipe),
    "formats": _of(exchange.formats), "advice": _of(remedies.advice), "faster": _of(remedies.quicker),
    "limit": _of(remedies.limit),
    "compare": _of(remedies.compared), "measured": _of(remedies.beside), "figure": _figure,
    "legal": lambda question: _json(degrees(question.document())),
    "catalogue": lambda question: _json(catalogue()),
    "options": _options,
}
"""Functions by the last part of the address of their kind."""
