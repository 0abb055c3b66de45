"""Memory over the step, thinned for figures: the highest moment of each stretch of the program, by owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from simcore.memory.ledger import running
from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.tape import Op
from simcore.results.detail import MemorySeries

__all__ = ["MAX_SAMPLES", "memory_by_part", "memory_series"]

MAX_SAMPLES = 600


def memory_series(program: Program, row_ns: IntArray | None) -> MemorySeries:
    """Allocated bytes by category of tensor at up to `MAX_SAMPLES` moments of the step, in order.

    The peak is among them. The step, without the allocations from before it, is cut into equal stretches of operations,
    each shown at its highest moment; persistent tensors are counted. `row_ns`: for each operation of the program the
    time in ns, since the step began, at which the compute stream reaches it; None: all times are zero.
    """
    return _series(program, row_ns, lambda posted: [program.outline.owners[slot][1] for slot in posted[:, 1].tolist()])


def memory_by_part(program: Program, row_ns: IntArray | None, kinds: Mapping[str, str]) -> MemorySeries:
    """Allocated bytes by kind of layer that holds them, at the moments of `memory_series`.

    `kinds`: name of the kind by path, for each layer of the whole model; bytes that no layer holds are named "between
    stages". `row_ns`: as in `memory_series`.
    """
    names = [kinds[path] for path in program.layer_paths]

    def part_of(posted: IntArray) -> list[str]:
        return [names[layer] if 0 <= layer < len(names) else "between stages" for layer in posted[:, 0].tolist()]

    return _series(program, row_ns, part_of)


def _series(program: Program, row_ns: IntArray | None, name_of: Callable[[IntArray], list[str]]) -> MemorySeries:
    """Samples of memory; `name_of` gives names for owners, each a row of (layer, slot)."""
    total = running(program)
    first = int(np.argmax(program.phase != Phase.BUILD))
    rows = _highest_rows(total, first)
    names, values = _by_name(program, rows, name_of)
    times = np.zeros(len(rows)) if row_ns is None else row_ns[rows] / 1e9
    return MemorySeries(
        categories=tuple(names), event_index=tuple((rows - first).tolist()),
        time_s=tuple(times.tolist()),
        phases=tuple(Phase(int(code)).name.lower() for code in program.phase[rows]),
        values=tuple(map(tuple, values.tolist())), layers=tuple(_layers(program, rows)))


def _layers(program: Program, rows: IntArray) -> Iterator[str]:
    """Path of the layer whose section runs at each row; empty between layers."""
    outline = program.outline
    ends = np.cumsum(outline.num_rows)
    for piece in np.searchsorted(ends, rows, side="right").tolist():
        at = outline.pieces[piece]
        yield program.layer_paths[at.layer] if at.tile >= 0 and at.layer < len(program.layer_paths) else ""


def _highest_rows(total: IntArray, first: int) -> IntArray:
    """Row with most bytes in each of `MAX_SAMPLES` equal stretches after `first`."""
    edges = np.unique(np.linspace(first, len(total), MAX_SAMPLES + 1).astype(np.int64))
    picks = [int(a) + int(np.argmax(total[a:b])) for a, b in pairwise(edges)]
    return np.array(picks, dtype=np.int64)


def _by_name(program: Program, rows: IntArray, name_of: Callable[[IntArray], list[str]]
             ) -> tuple[list[str], IntArray]:
    """Names by their largest value, and the bytes of each at `rows`: [name, sample]."""
    columns = program.columns
    posted = np.flatnonzero(columns[:, OP] <= Op.FREE)
    owners, which = _distinct(columns[posted][:, [LAYER, SLOT]])
    of_owners = name_of(owners)
    names = sorted(set(of_owners))
    number = np.array([names.index(name) for name in of_owners], dtype=np.int64)[which]
    upto = np.searchsorted(posted, rows, side="right")
    values = np.zeros((len(names), len(rows)), dtype=np.int64)
    for k in range(len(names)):
        sums = np.concatenate([[0], np.cumsum(np.where(number == k, columns[posted, AMOUNT], 0))])
        values[k] = sums[upto]
    order = [k for k in np.argsort(-values.max(axis=1), kind="stable") if values[k].any()]
    return [names[k] for k in order], values[order]


def _distinct(pairs: IntArray) -> tuple[IntArray, IntArray]:
    """Result of `np.unique(pairs, axis=0, return_inverse=True)`, by counting instead of sorting small numbers."""
    if not len(pairs):
        return pairs, np.zeros(0, dtype=np.int64)
    low = pairs.min(axis=0)
    base = int(pairs[:, 1].max() - low[1]) + 1
    keys = (pairs[:, 0] - low[0]) * base + pairs[:, 1] - low[1]
    present = np.flatnonzero(np.bincount(keys))
    place = np.zeros(int(present[-1]) + 1, dtype=np.int64)
    place[present] = np.arange(len(present))
    return np.stack((present // base, present % base), axis=1) + low, place[keys]
