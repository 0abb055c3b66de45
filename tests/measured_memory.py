"""All measured runs beside their scenarios, memory alone: about twenty seconds, once in a run of the tests.

Parts of one `make test` share the result by a file in pytest's cache, which names the run.
"""

from __future__ import annotations

import os
import pickle
from functools import cache

from checkout import ROOT
from simcore.simulate import simulate
from simcore.validation.runs import Measured, layout_of, read_measured
from simcore.validation.validate import Validation, layouts, validate

__all__ = ["compared_memory", "measured_rows"]

_SHARED = ROOT / ".pytest_cache" / "measured_memory.pickle"


@cache
def measured_rows() -> tuple[Measured, ...]:
    """Rows of every file under `tests/truth/measured/`."""
    return tuple(read_measured()[0])


@cache
def compared_memory() -> Validation:
    """Result of `rankscope validate`, without step times."""
    run = os.environ.get("RUN_OF_TESTS")
    if run is None:
        return _simulated()
    if (found := _stored(run)) is None:
        found = _simulated()
        _SHARED.parent.mkdir(exist_ok=True)
        own = _SHARED.with_suffix(f".{os.getpid()}")
        own.write_bytes(pickle.dumps((run, found)))
        own.replace(_SHARED)
    return found


def _simulated() -> Validation:
    rows = measured_rows()
    reports = {layout_of(entry): simulate(entry.scenario, timed=False) for entry in layouts(rows) if entry.scenario}
    return validate(rows, reports)


def _stored(run: str) -> Validation | None:
    """Result that another process of the same run of the tests has stored, None if there is none."""
    try:
        name, found = pickle.loads(_SHARED.read_bytes())  # noqa: S301 - written by `compared_memory`
    except OSError:
        return None
    return found if name == run else None
