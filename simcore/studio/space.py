"""The space of layouts that a question asks to search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.studio.question import Question

__all__ = ["names_of", "space_of_question"]

_MOST_CANDIDATES: Final = 100_000


def space_of_question(question: Question) -> Any:
    """Space around the question's job; InputError for fields of another kind, and for too many layouts."""
    from simcore.search.space import candidates, space_of

    asked = question.rest
    free = asked.get("free")
    if free is not None and not (isinstance(free, dict) and all(isinstance(one, list) for one in free.values())):
        raise InputError(Problem("free", "expected lists of values by key"))
    gpus = asked.get("gpus") or []
    if not isinstance(gpus, list) or not all(type(n) is int and 1 <= n <= 2**22 for n in gpus):
        raise InputError(Problem("gpus", "expected numbers of GPUs"))
    space = space_of(question.scenario(), gpus=gpus, frameworks=names_of(asked, "frameworks", ()),
                     topologies=names_of(asked, "topologies", ()),
                     free=None if free is None else {key: tuple(values) for key, values in free.items()})
    if sum(1 for _, _ in zip(range(_MOST_CANDIDATES + 1), candidates(space), strict=False)) > _MOST_CANDIDATES:
        message = f"has more than {_MOST_CANDIDATES:,} layouts: free fewer keys, or use `rankscope search`"
        raise InputError(Problem("free", message))
    return space


def names_of(asked: Mapping[str, Any], field: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Names in a field of a question, `usual` without one; InputError for something else."""
    names = asked.get(field) or usual
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(Problem(field, "expected a list of names"))
    return tuple(names)
