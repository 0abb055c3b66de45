"""Errors of step time on rows that the fit of constants did not use, read from `measured/left_out.json`.

`tests/truth/fit_time.py --left-out` writes it: for each group, and each kind of machine, constants are fitted on all
other rows and tested on these.
"""

from __future__ import annotations

import json
from functools import lru_cache

from simcore.inputs.document import read_text
from simcore.inputs.shipped import data_folder

__all__ = ["left_out"]


def left_out(what: str, name: str) -> float | None:
    """Median relative error of step times that a fit of constants did not see; None if not tested.

    `what`: "group" (of measured rows, called `name`) or "gpu" (rows of the topology `name`). From
    `measured/left_out.json`.
    """
    error: float | None = _read().get(what, {}).get(name, {}).get("median")
    return error


@lru_cache(maxsize=1)
def _read() -> dict[str, dict[str, dict[str, float]]]:
    path = data_folder("measured") / "left_out.json"
    errors: dict[str, dict[str, dict[str, float]]] = json.loads(read_text(path)) if path.exists() else {}
    return errors
