"""Errors of step time by fits that had not seen a run, as they were found when constants were fitted.

[Note: rows left out]
Constants of time are fitted to measured rows, so errors on these rows say too little of others. Rows of one source,
one model family and one machine are a *group*: they share what a source leaves unsaid. `tests/truth/fit_left_out.py`
leaves each group out, solves the fit again until it stays, and simulates the group's rows by it; whole sources and
whole machines too. What it found is in `measured/left_out.json`, with digests of the rows and factors that it was made
from (`tests/test_calibrated.py` compares them). A row is stored as the ratio of the time that was predicted without its
group to the time with it. A row that is not in the file was in no fit: its error is one on a row left out as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from simcore.inputs.document import read_text
from simcore.inputs.shipped import data_folder

__all__ = ["FILE", "GroupLeftOut", "groups_left_out", "left_out", "ratio_left_out"]

FILE: Final = "left_out.json"


class GroupLeftOut(BaseModel):
    """A group of configurations that was left out of the fit together: of one source, model family and machine.

    `fitted`, `left_out`: median errors without their sign, by the whole fit and by the fit without the group; `worst`:
    the largest error of the latter. `alone`: names of the factors that rest on this group alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    family: str
    machine: str
    configurations: int
    fitted: float
    left_out: float
    worst: float
    alone: tuple[str, ...]


def groups_left_out() -> tuple[GroupLeftOut, ...]:
    """All groups that were left out, in order of their names; () if nothing was tested."""
    fields = GroupLeftOut.model_fields
    return tuple(GroupLeftOut.model_validate({**{key: told[key] for key in fields}, "alone": tuple(told["alone"])})
                 for told in _told().get("together", ()))


def ratio_left_out(row: str) -> float | None:
    """Step time of a row predicted by a fit without its group, over that by the whole fit; None if no fit had it."""
    return _ratios().get(row)


def left_out(what: str, name: str) -> float | None:
    """Median relative error of the step times of a whole source or machine that was left out; None if not tested.

    `what`: "group" (source of rows, called `name`) or "gpu" (rows of the topology `name`).
    """
    error: float | None = _told().get(what, {}).get(name, {}).get("median")
    return error


@lru_cache(maxsize=1)
def _told() -> Mapping[str, Any]:
    path = data_folder("measured") / FILE
    told: dict[str, Any] = json.loads(read_text(path)) if path.exists() else {}
    return told


@lru_cache(maxsize=1)
def _ratios() -> Mapping[str, float]:
    return {row: ratio for group in _told().get("together", ()) for ratio, rows in group["ratios"] for row in rows}
