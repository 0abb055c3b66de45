"""Fewest GPUs of each framework, those with few layouts first; a row as soon as it is known.

[Note: closed axes]
An axis of the mesh is closed if the framework refuses it in the same words for each of several degrees that have no
factor in common: such words speak of the axis, not of a degree. It keeps one rank, which spares thousands of layouts
that would be refused one by one. Where no open axis shards anything, all numbers of GPUs hold the same bytes at rest on
a rank, so that one GPU tells for all of them that no number is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from simcore.errors import RankscopeError
from simcore.frameworks.registry import known_frameworks
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.results.limit import Value
from simcore.search.judge import Refused, judged
from simcore.search.limits import free_limit
from simcore.search.meshes import DEGREES
from simcore.search.objective import OBJECTIVES
from simcore.search.search import Search
from simcore.search.space import candidates, space_of
from simcore.simulate import check
from simcore.studio.question import Question
from simcore.studio.space import names_of, space_of_question

__all__ = ["fewest"]

_AXES: Final = (*DEGREES, "ep")
_TRIED: Final = (2, 3, 5, 7)
_AT_REST: Final = "what rests on a rank is more than fits, on any number of GPUs: nothing of it is sharded"


def fewest(question: Question) -> Iterator[dict[str, Any]]:
    """Yields what is tried (`trying`, `done`, `all_of`), and of each framework its row; at last `over`.

    A row: `framework`; `value`: fewest GPUs, None if none is known; `why`: of the number below it, or of none;
    `layout`: the best there; `is_refused`: every layout is refused, so that nothing was answered.
    """
    base = question.scenario()
    names = names_of(question.rest, "frameworks", tuple(dict.fromkeys((base.framework, *known_frameworks()))))
    free = question.rest.get("free") or {}
    opened = {name: _open_axes(base, name) if "mesh" in free else _AXES for name in names}
    for done, name in enumerate(sorted(names, key=lambda name: len(opened[name]))):
        yield {"trying": name, "done": done, "all_of": len(names)}
        asked = {**question.rest, "frameworks": [name]}
        if "mesh" in free:
            axes = {f"mesh.{axis}": [] if axis in opened[name] else [1] for axis in _AXES}
            asked["free"] = {**{key: values for key, values in free.items() if key != "mesh"}, "mesh.etp": [], **axes}
        one = Question(question.name, question.text, question.values, question.files, asked)
        yield {"fewest": {"framework": name, **_fewest_of(one, opened[name])}}
    yield {"over": True}


def _open_axes(base: Scenario, framework: str) -> tuple[str, ...]:
    return tuple(axis for axis in _AXES if not _is_closed(base, framework, axis))


def _is_closed(base: Scenario, framework: str, axis: str) -> bool:
    """True if a framework refuses an axis in the same words for every degree that is tried."""
    words = {_refusal(base, framework, axis, degree) for degree in _TRIED}
    return len(words) == 1 and words != {""}


def _refusal(base: Scenario, framework: str, axis: str, degree: int) -> str:
    """Words that refuse a degree of an axis on as many GPUs; "" if it is legal. The batch does not count."""
    beside = ("dp_shard",) if axis == "ep" else ()
    space = space_of(base, gpus=[degree], frameworks=[framework], free={
        f"mesh.{each}": (degree if each in (axis, *beside) else 1,) for each in _AXES})
    try:
        first = next(candidates(space))
        problems = check(changed(base, {**first, "training.global_batch_size": None})).problems
    except RankscopeError as error:
        return error.problems[0].message
    return problems[0].message if problems else ""


def _fewest_of(question: Question, opened: tuple[str, ...]) -> Mapping[str, Any]:
    nothing: dict[str, Any] = {"value": None, "layout": None, "beyond": None, "untried": 0, "is_refused": False}
    try:
        space = space_of_question(question)
        if opened == ("dp_replicate",) and _is_hopeless(question):
            return {**nothing, "why": _AT_REST}
        found = free_limit(Search(space, (OBJECTIVES["tokens"], OBJECTIVES["peak"])), "gpus")
    except RankscopeError as error:
        return {**nothing, "why": error.problems[0].message, "is_refused": True}
    best = found.best.ranked[0].model_dump() if found.best and found.best.ranked else None
    value: Value | None = found.value
    return {**nothing, "value": value, "beyond": found.beyond, "why": found.why, "untried": found.untried,
            "layout": best}


def _is_hopeless(question: Question) -> bool:
    """True if what rests on one GPU is more than fits, in every layout there that is not refused."""
    one = Question(question.name, question.text, question.values, question.files, {**question.rest, "gpus": [1]})
    space = space_of_question(one)
    answers = [answer for answer in judged(space.base, list(candidates(space))) if not isinstance(answer, Refused)]
    return bool(answers) and all(answer is None for answer in answers)
