"""All measured runs beside their scenarios, memory alone: about twenty seconds, once in a process."""

from __future__ import annotations

from functools import cache

from simcore.simulate import simulate
from simcore.validation.runs import Measured, layout_of, read_measured
from simcore.validation.validate import Validation, layouts, validate

__all__ = ["compared_memory", "measured_rows"]


@cache
def measured_rows() -> tuple[Measured, ...]:
    """Rows of every file under `tests/truth/measured/`."""
    return tuple(read_measured()[0])


@cache
def compared_memory() -> Validation:
    """Result of `rankscope validate`, without step times."""
    rows = measured_rows()
    reports = {layout_of(entry): simulate(entry.scenario, timed=False) for entry in layouts(rows) if entry.scenario}
    return validate(rows, reports)
