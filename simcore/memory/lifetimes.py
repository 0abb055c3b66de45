"""Lifetimes: birth and death of every allocation of a program, for tools that draw each of them.

Input: a `Program`. Output: columns of `detail.Lifetimes`, in order of issue. Tensors that persist from before the step
are born first. A row of a program frees bytes of an owner, not a certain block: the owner's youngest block of that size
is freed; without one, blocks are split into the parts that are freed. All sums are those of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.tile import AMOUNT, LAYER, OP, SLOT
from simcore.recording.exact_sums import sums_by_key
from simcore.recording.tape import Op
from simcore.results.detail import Lifetimes

__all__ = ["lifetimes"]

TOGETHER = "many tensors"
"""Name of a block that stands for several."""

_FINEST = 1 << 14
"""Number of stretches of a step that is tried first when tensors are merged."""


def lifetimes(program: Program, row_ns: IntArray | None, limit: int) -> Lifetimes:
    """Birth, death, size and owner of every allocation of the program, in order of birth.

    With more than `limit` allocations and frees, tensors of one layer and category are merged; the highest moment is
    exact to the byte in both cases. `row_ns`: for each operation of the program the time in ns, since the step began,
    at which the compute stream reaches it; None: all zero.
    """
    rows = np.flatnonzero(program.columns[:, OP] <= Op.FREE)
    posted = program.columns[rows]
    if len(rows) <= limit:
        owners, of_row = np.unique(posted[:, [LAYER, SLOT]], axis=0, return_inverse=True)
        names = tuple(_named(program, layer, slot) for layer, slot in owners.tolist())
        steps: Iterator[tuple[int, int, int]] = zip(range(len(rows)), of_row.ravel().tolist(),
                                                    posted[:, AMOUNT].tolist(), strict=True)
        return _table(program, rows, row_ns, names, _Blocks(steps), 0)
    names, groups = _groups(program, posted)
    at, steps = _thinned(posted[:, AMOUNT], int(np.argmax(program.phase[rows] != Phase.BUILD)), groups, limit)
    return _table(program, rows[at], row_ns, names, _Blocks(steps), int((posted[:, OP] == Op.ALLOC).sum()))


def _named(program: Program, layer: int, slot: int) -> tuple[str, str, str]:
    """(layer path, tensor, category) of an owner."""
    owner, category = program.owner(layer, slot)
    path, _, name = owner.partition("/")
    return path, name, category


def _groups(program: Program, posted: IntArray) -> tuple[tuple[tuple[str, str, str], ...], IntArray]:
    """Pairs of layer and category, as owners, and the number of the group of each posting."""
    categories, of_slot = program.outline.categories
    pairs = np.stack([posted[:, LAYER], of_slot[posted[:, SLOT]]], axis=1)
    owners, of_row = np.unique(pairs, axis=0, return_inverse=True)
    slots = {number: int(np.argmax(of_slot == number)) for number in range(len(categories))}
    names = tuple((_named(program, layer, slots[number])[0], TOGETHER, categories[number])
                  for layer, number in owners.tolist())
    return names, of_row.ravel()


def _thinned(amounts: IntArray, first: int, groups: IntArray, limit: int) -> tuple[
        IntArray, Iterator[tuple[int, int, int]]]:
    """Highest posting of each stretch, and (its index, group, change in bytes since the one before).

    Between two such moments groups that shrink come first, so no sum in between exceeds the higher of the two.
    """
    total, num_groups, stretches = np.cumsum(amounts), int(groups.max()) + 1, _FINEST
    while True:
        edges = np.unique(np.linspace(first, len(total), stretches + 1).astype(np.int64))
        tops = [int(a) + int(np.argmax(total[a:b])) for a, b in pairwise(edges)]
        at = np.unique(np.array([max(first - 1, 0), *tops, len(total) - 1]))
        keys, of_row = np.unique(np.searchsorted(at, np.arange(len(total))) * num_groups + groups, return_inverse=True)
        sums = sums_by_key(of_row.ravel(), amounts, len(keys))
        if stretches == 1 or 2 * np.count_nonzero(sums) <= limit:
            break
        stretches //= 2
    moments, owners = np.divmod(keys[sums != 0], num_groups)
    kept = sums[sums != 0]
    order = np.lexsort((kept > 0, moments))
    steps: Iterator[tuple[int, int, int]] = zip(moments[order].tolist(), owners[order].tolist(),
                                                kept[order].tolist(), strict=True)
    return at, steps


class _Blocks:
    """Blocks of owners: `rows` of (born, died, owner, bytes); moments are numbers, died is -1 for blocks that stay."""

    def __init__(self, steps: Iterator[tuple[int, int, int]]) -> None:
        self.rows: list[list[int]] = []
        self.live: dict[int, list[int]] = {}
        for moment, owner, amount in steps:
            if amount > 0:
                self._add([moment, -1, owner, amount])
            else:
                self._free(moment, self.live[owner], -amount)

    def _add(self, row: list[int]) -> None:
        self.live.setdefault(row[2], []).append(len(self.rows))
        self.rows.append(row)

    def _free(self, moment: int, live: list[int], amount: int) -> None:
        same = next((place for place in range(len(live) - 1, -1, -1) if self.rows[live[place]][3] == amount), None)
        while amount:
            row = self.rows[live.pop(-1 if same is None else same)]
            if row[3] > amount:  # the rest of the block stays
                self._add([row[0], -1, row[2], row[3] - amount])
                row[3] = amount
            row[1] = moment
            amount -= row[3]


def _table(program: Program, rows: IntArray, row_ns: IntArray | None, names: tuple[tuple[str, str, str], ...],
           blocks: _Blocks, merged: int) -> Lifetimes:
    """Columns of the blocks; `rows`: the program's row at each moment."""
    ordered = sorted(blocks.rows, key=lambda row: row[0])
    born, died, owner, size = (tuple(column) for column in zip(*ordered, strict=True)) if ordered else ((),) * 4
    dates = np.zeros(len(rows), dtype=np.int64) if row_ns is None else np.maximum.accumulate(row_ns[rows]) // 1000
    return Lifetimes(
        owners=names, owner=owner, bytes=size, born=born, died=died, time_us=tuple(dates.tolist()),
        phases=tuple(Phase(code).name.lower() for code in program.phase[rows].tolist()),
        microbatches=tuple(program.microbatch[rows].tolist()), merged=merged)
