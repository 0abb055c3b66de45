"""Kinds of questions that the page asks, each a function from a question to the bytes of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from simcore.batch.advice import work
from simcore.batch.run import attempt
from simcore.inputs.dump import yaml_text
from simcore.studio.catalogue import catalogue, options, start
from simcore.studio.degrees import degrees
from simcore.studio.question import Question
from simcore.studio.views import pictures, view

__all__ = ["ANSWERS", "warm"]



def warm() -> None:
    """Answers the first question of a page, so that what it needs is loaded."""
    question = Question.of({"values": start()})
    _view(question)
    _pictures(question)


def _answer(question: Question) -> bytes:
    """The bytes that `rankscope run --json` prints for a file of this text; with advice as there, unless refused."""
    entries = question.entries()
    simulated = work(len(entries), asked=question.rest.get("advise"))
    lines = ",\n".join(attempt(entry, simulated).report.model_dump_json() for entry in entries)
    return f"[\n{lines}\n]\n".encode()


def _one(question: Question, **asked: Any) -> Any:
    from simcore.simulate import simulate

    (entry, *_) = question.entries()
    return attempt(entry, partial(simulate, **asked)).report


def _view(question: Question) -> bytes:
    return _json(view(_one(question)))


def _pictures(question: Question) -> bytes:
    return _json(pictures(_one(question, detail=True)))


def _scenario(question: Question) -> bytes:
    """The scenario as YAML, as it would stand in a file."""
    return _json({"text": yaml_text(question.document().data)})


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


ANSWERS: Final[Mapping[str, Callable[[Question], bytes]]] = {
    "answer": _answer, "view": _view, "pictures": _pictures, "scenario": _scenario,
    "legal": lambda question: _json(degrees(question.document())),
    "catalogue": lambda question: _json(catalogue()),
    "options": lambda question: _json({"options": options(str(question.rest.get("framework")))}),
}
"""Functions by the last part of the address of their kind."""
