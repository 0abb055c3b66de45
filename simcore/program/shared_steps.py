"""Steps that plans of one form share: their walks write the same rows, of other amounts.

[Note: plans of one form]
Layouts of a search differ mostly in how tensors are cut, so in sizes: which rows hooks write, and between which layers,
is the same for dozens of them. The first walk of a form is made over traced sizes (`traced.py`), and what it writes is
kept with numbers in place of amounts. A plan of the same form, whose sizes give the same answers to the walk's
questions, gets the rows with its own amounts. Where hooks write what does not follow from their sizes, or the answers
are others, the plan is walked by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simcore.placement.mesh import IntArray
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import MemoryHooks, SizedHooks
from simcore.program.outline import StepTemplate, Tables
from simcore.program.record_layers import RecordedLayers
from simcore.program.row_cache import Shelf
from simcore.program.tile import AMOUNT, AUX, OP, LayerRows
from simcore.program.traced import Trace, Traced, Untraced
from simcore.recording.tape import Op, Stream

__all__ = ["shared_step"]

Walk = Callable[[MemoryHooks, RecordedLayers, Builder], None]
"""Writes the step behind the allocations of what lives across steps."""
_FREE, _COMPUTE, _MARK, _WAIT, _HOST = (int(op) for op in (Op.FREE, Op.COMPUTE, Op.MARK, Op.WAIT, Op.HOST))


@dataclass(frozen=True)
class _Pattern:
    """Step of plans of one form: its segments, and rows of hooks with numbers of amounts plus 1 (0: none).

    `begun`: tables with the names of hooks, before anything is written; `tables`: at the end. `resting`, `rest_rows`:
    number of segments and of rows of hooks for what lives across steps, which each plan writes itself; `rest`: their
    structure, and the owners behind them. `places`: of each tile its index in `RecordedLayers.tiles`, or -1.
    """

    columns: IntArray
    numbered: IntArray
    begun: Tables
    tables: Tables
    resting: int
    rest: Hashable
    places: tuple[int, ...]
    trace: Trace


_PATTERNS: Final[Shelf[tuple[_Pattern | None, ...]]] = Shelf()
"""Patterns of a form, whose walks gave different answers to its questions; None: its amounts cannot be traced."""
_MOST: Final = 3


def shared_step(plan: Plan, recording: RecordedLayers, order: Hashable, hooks: SizedHooks[Any],
                walk: Walk) -> tuple[StepTemplate, tuple[int, ...]] | None:
    """Step template of a plan, and the index in `recording.tiles` of each tile (-1: own); None: walk it by itself.

    `walk` writes all behind what lives across steps; `order`: on what it depends besides plan and recording.
    """
    sizes = hooks.sizes(plan)
    numbers = (*sizes.numbers, *recording.grad_bytes)
    form = _Form(plan, (hooks, recording.form, order, sizes.form))
    known = _PATTERNS.get(form) or ()
    for pattern in known:
        found = None if pattern is None else _filled(pattern, plan, recording, hooks, numbers)
        if found is not None:
            return found
    if None in known or len(known) == _MOST:
        return None
    pattern = _traced(plan, recording, hooks, walk, numbers)
    _PATTERNS.put(form, (*known, pattern))
    return None if pattern is None else _filled(pattern, plan, recording, hooks, numbers)


class _Form:
    """All of a plan on which rows depend, besides sizes. Plans of equal forms share a pattern."""

    def __init__(self, plan: Plan, others: tuple[Hashable, ...]) -> None:
        framework = replace(plan.framework, rules=(), communicators=(), unseen_bytes=0, assumptions=(), defaults=())
        self.parts = (*others, plan.graph, plan.chunks, plan.stage, plan.mesh.pp, framework)
        self.hashed = hash((others, plan.graph, plan.chunks, framework.checkpoint))

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Form) and self.parts == other.parts


# ---- the first plan of a form ---------------------------------------------------------------------------------------
def _traced(plan: Plan, recording: RecordedLayers, hooks: SizedHooks[Any], walk: Walk,
            numbers: tuple[int, ...]) -> _Pattern | None:
    """Pattern of the plan's form; None if hooks write amounts that do not follow from their sizes."""
    trace, tables = Trace(len(numbers)), recording.tables.copy()
    traced = trace.sizes(numbers)
    own = len(numbers) - len(recording.grad_bytes)
    builder = _NumberBuilder(tables)
    try:
        made = hooks.make(plan, tables, builder, hooks.sizes(plan).renumbered(traced[:own]))
        begun = tables.copy()
        builder.numbers = False
        hooks.post_persistent(plan, tables, builder)
        resting, rest_rows = builder.here()[1], builder.here()[0]
        structure = tuple(tables.slots)
        builder.numbers = True
        walk(made, recording.with_grads(traced[own:]), builder)
    except Untraced:
        return None
    step = builder.build(())
    places = _places(recording, step.tiles)
    known = _structure(step.columns[:, :resting], step.loose[:rest_rows], structure)
    return _Pattern(step.columns, step.loose[rest_rows:], begun, tables, resting, known, places, trace)


def _places(recording: RecordedLayers, tiles: tuple[LayerRows, ...]) -> tuple[int, ...]:
    numbers = {id(tile): number for number, tile in enumerate(recording.tiles)}
    return tuple(numbers.get(id(tile), -1) for tile in tiles)


def _structure(columns: IntArray, loose: IntArray, owners: tuple[tuple[str, str], ...]) -> Hashable:
    """Rows for what lives across steps without their bytes, and the owners of memory behind them."""
    rows = loose.copy()
    rows[:, AMOUNT] = 0
    return columns.tobytes(), rows.tobytes(), owners


class _NumberBuilder(Builder):
    """Builder that writes numbers of amounts plus 1, where `numbers` is set, and amounts themselves else."""

    numbers = True

    def alloc(self, layer: int, slot: int, num_bytes: int) -> None:
        super().alloc(layer, slot, self._number(num_bytes))

    def free(self, layer: int, slot: int, num_bytes: int) -> None:
        super().free(layer, slot, self._number(num_bytes))

    def compute(self, kernel: int, flops: int, moved_bytes: int, operators: int = 0) -> None:
        super().compute(kernel, self._number(flops), self._number(moved_bytes), operators)

    def collective(self, layer: int, comm: int, payload: int, stream: Stream, handle: int) -> None:
        super().collective(layer, comm, self._number(payload), stream, handle)

    def copy(self, layer: int, comm: int, num_bytes: int, stream: Stream, handle: int) -> None:
        super().copy(layer, comm, self._number(num_bytes), stream, handle)

    def host(self, num_bytes: int, where: int = 0) -> None:
        super().host(self._number(num_bytes), where)

    def _number(self, amount: int) -> int:
        if not self.numbers:
            return amount
        if not amount:
            return 0
        if not isinstance(amount, Traced):
            raise Untraced
        return amount.number + 1


# ---- others of the form ---------------------------------------------------------------------------------------------
def _filled(pattern: _Pattern, plan: Plan, recording: RecordedLayers, hooks: SizedHooks[Any],
            numbers: tuple[int, ...]) -> tuple[StepTemplate, tuple[int, ...]] | None:
    """The pattern's step with the amounts of a plan's sizes; None if the plan's rows are others."""
    amounts = pattern.trace.amounts(numbers)
    if amounts is None or max(amounts, default=0) >= 2**63:
        return None
    tables = pattern.begun.copy()
    builder = Builder(tables)
    hooks.post_persistent(plan, tables, builder)
    builder.here()
    resting = builder.build(())
    if _structure(resting.columns, resting.loose, tuple(tables.slots)) != pattern.rest:
        return None
    own = iter(resting.tiles)
    tiles = tuple(next(own) if place < 0 else recording.tiles[place] for place in pattern.places)
    loose = np.concatenate([resting.loose, _with_amounts(pattern.numbered, np.array([0, *amounts], dtype=np.int64))])
    paths = tuple(layer.path for layer in plan.graph.layers)
    return StepTemplate(pattern.columns, loose, tiles, pattern.tables.copy(), paths), pattern.places


def _with_amounts(numbered: IntArray, amounts: IntArray) -> IntArray:
    """Rows of hooks with amounts [number] in place of numbers."""
    rows, op = numbered.copy(), numbered[:, OP]
    at = np.flatnonzero((op != _MARK) & (op != _WAIT) & (op != _HOST))
    rows[at, AMOUNT] = amounts[np.abs(rows[at, AMOUNT])] * np.where(op[at] == _FREE, -1, 1)
    moved = np.flatnonzero((op == _COMPUTE) | (op == _HOST))
    rows[moved, AUX] = amounts[rows[moved, AUX]]
    return rows

