"""Memory over the step, thinned for pictures: the highest moment of each stretch of the program, by category."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from simcore.ledger import running
from simcore.mesh import IntArray
from simcore.outline import Phase
from simcore.program import Program
from simcore.report import MemorySeries
from simcore.tape import Op
from simcore.tile import AMOUNT, OP, SLOT

__all__ = ["MAX_SAMPLES", "memory_series"]

MAX_SAMPLES = 600


def memory_series(program: Program, row_ns: IntArray | None) -> MemorySeries:
    """At most `MAX_SAMPLES` moments; the peak is one of them. `row_ns` dates rows (None: all zero)."""
    total = running(program)
    first = int(np.argmax(program.phase != Phase.BUILD))
    rows = _highest_rows(total, first)
    names, values = _by_category(program, rows)
    times = np.zeros(len(rows)) if row_ns is None else row_ns[rows] / 1e9
    return MemorySeries(
        categories=tuple(names), event_index=tuple(int(r) - first for r in rows),
        time_s=tuple(float(t) for t in times),
        phases=tuple(Phase(int(code)).name.lower() for code in program.phase[rows]),
        values=tuple(tuple(int(v) for v in row) for row in values))


def _highest_rows(total: IntArray, first: int) -> IntArray:
    """The row with most bytes in each of `MAX_SAMPLES` equal stretches after `first`."""
    edges = np.unique(np.linspace(first, len(total), MAX_SAMPLES + 1).astype(np.int64))
    picks = [int(a) + int(np.argmax(total[a:b])) for a, b in pairwise(edges)]
    return np.array(picks, dtype=np.int64)


def _by_category(program: Program, rows: IntArray) -> tuple[list[str], IntArray]:
    """Categories by their largest value, and bytes of each at `rows`: [category, sample]."""
    columns = program.columns
    posted = np.flatnonzero(columns[:, OP] <= Op.FREE)
    categories = [category for _, category in program.tables.slots]
    names = sorted(set(categories))
    number = np.array([names.index(c) for c in categories])[columns[posted, SLOT]]
    upto = np.searchsorted(posted, rows, side="right")
    values = np.zeros((len(names), len(rows)), dtype=np.int64)
    for k in range(len(names)):
        sums = np.concatenate([[0], np.cumsum(np.where(number == k, columns[posted, AMOUNT], 0))])
        values[k] = sums[upto]
    order = [k for k in np.argsort(-values.max(axis=1), kind="stable") if values[k].any()]
    return [names[k] for k in order], values[order]
