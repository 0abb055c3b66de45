"""Lowering: the program of one rank class.

Comes in: a plan (how this class holds every tensor) and the workload. Goes out: `Program`. The walk is the same for all
frameworks: microbatches in the order of the pipeline schedule, layers in the order of the graph; at each border the
framework's flow (`flows/*.py`) writes what it brings, drops and reduces. Layers are recorded once per kind.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from simcore.graph import ModelGraph
from simcore.models.blocks import LayerKind
from simcore.plan import Placed, Plan
from simcore.program import Builder, Phase, Program, Stream, Tables, Tile
from simcore.recording import LayerTape, Run
from simcore.schedule import Action
from simcore.tape import GRAD_HIDDEN, HIDDEN, Op, Param
from simcore.units import dtype_bytes

__all__ = ["Flow", "LayerTiles", "Workload", "lower", "record_layers"]

TIED_HEAD = 1 << 30
"""Layer offset of rows that belong to a tied head, wherever it is."""

EXPERTS_MARKS = range(2, 6)
"""Marks that a tape puts around an experts module that is a unit of its own."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one rank computes per microbatch. `num_microbatches` of the step, `lowered` of them written out."""

    batch: int
    seq: int
    num_microbatches: int
    rows_per_token: int


class Flow(Protocol):
    """What a framework does at the borders. Layers are numbers of the graph."""

    def rest(self) -> None:
        """Post everything that lives across steps."""

    def begin_microbatch(self, action: Action) -> None:
        """A forward or backward pass begins."""

    def forward_begin(self, layer: int) -> None:
        """Before the layer's forward."""

    def forward_end(self, layer: int) -> None:
        """After it."""

    def backward_begin(self, layer: int) -> None:
        """Before the layer's backward."""

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """After it; `grads` exist now."""

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """A border of an experts module that is a unit of its own."""

    def end_pass(self, action: Action) -> None:
        """The pass over the stage is done."""

    def optimize(self) -> None:
        """The optimizer's step."""


@dataclass(frozen=True, eq=False)
class LayerTiles:
    """A recorded kind as tiles; passes are cut where an experts unit begins or ends: (tile, mark or 0, in replay)."""

    forward: tuple[tuple[Tile, int, bool], ...]
    backward: tuple[tuple[Tile, int, bool], ...]
    after: Tile
    late: Tile
    seed: Tile
    grads: tuple[tuple[Param, int, int], ...]


def lower(plan: Plan, workload: Workload, actions: Iterable[Action], flow_of: FlowMaker) -> Program:
    """The program of the plan's rank for the given order of passes."""
    tables, tiles, standing = record_layers(plan, workload)
    tables = _own_copy(tables)
    builder = Builder(tables)
    flow = flow_of(plan, tables, builder)
    walk = _Walk(plan, workload, builder, flow, tiles)
    flow.rest()
    for name, num_bytes in standing.items():
        builder.alloc(plan.layers[0], tables.slot(name, "workspace"), num_bytes)
    for action in actions:
        walk.forward(action) if action.forward else walk.backward(action)
    builder.at(Phase.OPTIMIZER)
    flow.optimize()
    return builder.build([layer.path for layer in plan.graph.layers])


class FlowMaker(Protocol):
    """Makes the framework's flow for one program."""

    def __call__(self, plan: Plan, tables: Tables, builder: Builder) -> Flow:
        """A fresh flow."""


def _own_copy(tables: Tables) -> Tables:
    mine = Tables()
    mine.slots, mine.comms = dict(tables.slots), dict(tables.comms)
    return mine


# ---- recording ------------------------------------------------------------------------------------------------------
def record_layers(plan: Plan, workload: Workload) -> tuple[Tables, dict[int, LayerTiles], dict[str, int]]:
    """Tiles of every layer of the plan's stage, the tables that their rows point into, and standing workspaces."""
    framework, mesh = plan.framework, plan.mesh
    first_block = plan.layers[0] + 1 if plan.stage == 0 else -1
    below = _trained_below(plan)
    tied = plan.graph.architecture.tied
    runs: dict[tuple[int, bool, bool], Run] = {}
    for layer in plan.layers:
        kind = plan.graph.layers[layer].kind
        key = (kind, layer == first_block, below[layer])
        if key not in runs:
            params = tuple(_param(p, tied=tied and plan.graph.kinds[kind].block is not None) for p in plan.kinds[kind]
                           if not p.spec.is_buffer)
            runs[key] = Run(
                workload.batch, workload.seq, framework.compute_dtype, _Params(params), framework.loss,
                framework.checkpoint, mesh.tp, framework.sequence_parallel, mesh.cp, mesh.ep, mesh.etp,
                framework.ep_axis, workload.rows_per_token, key[1], key[2], framework.options)
    tables, by_key, standing = _record(plan.graph, tuple(runs.items()))
    tiles = {layer: by_key[plan.graph.layers[layer].kind, layer == first_block, below[layer]]
             for layer in plan.layers}
    return tables, tiles, standing


class _Params(dict[str, Param]):
    """Parameters by name; hashable, so that equal layers are recorded once."""

    def __init__(self, params: tuple[Param, ...]) -> None:
        super().__init__((p.name, p) for p in params)
        self.key = params

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.key)


def _param(placed: Placed, *, tied: bool) -> Param:
    life = placed.life
    shape = (placed.used_copies, *placed.used_shape) if placed.spec.copies > 1 else placed.used_shape
    trainable = placed.spec.trainable and not placed.spec.is_buffer
    return Param(placed.spec.name, shape, life.use.dtype, trainable, life.grad_made_category,
                 life.grad_made_category == "", tied)


def _trained_below(plan: Plan) -> dict[int, bool]:
    """For each layer of the stage, whether its input carries a gradient."""
    trained = any(p.trainable for layer in range(plan.layers[0]) for p in plan.of_layer(layer))
    below = {}
    for layer in plan.layers:
        below[layer] = trained
        trained = trained or any(p.trainable for p in plan.of_layer(layer))
    return below


@lru_cache(maxsize=128)
def _record(graph: ModelGraph, runs: tuple[tuple[tuple[int, bool, bool], Run], ...]) -> tuple[
        Tables, dict[tuple[int, bool, bool], LayerTiles], dict[str, int]]:
    operators = importlib.import_module(f"simcore.operators.{graph.implementation}")
    tables = Tables()
    tiles = {}
    head = next((i for i, layer in enumerate(graph.layers) if graph.kinds[layer.kind].name == "head"), 0)
    for key, run in runs:
        kind: LayerKind = graph.kinds[key[0]]
        tiles[key] = _tiles(operators.record(kind, run, tables.slots, tables.comms), head)
    standing = operators.standing if hasattr(operators, "standing") else _no_standing
    return tables, tiles, standing([(graph.kinds[key[0]], run) for key, run in runs])


def _no_standing(runs: object) -> dict[str, int]:
    return {}


def _tiles(tape: LayerTape, head: int) -> LayerTiles:
    """`head`: where rows of the embedding that are a tied head's point to."""
    backward = Tile.of(tape.backward)
    layer = backward.rows[:, 1]
    layer[layer >= TIED_HEAD] = head
    return LayerTiles(_cut(Tile.of(tape.forward)), _cut(backward), Tile.of(tape.after),
                      Tile.of(tape.late), Tile.of(tape.seed), tape.grads)


def _cut(tile: Tile) -> tuple[tuple[Tile, int, bool], ...]:
    """Split a pass at the borders of an experts unit."""
    rows = tile.rows
    at = np.flatnonzero((rows[:, 0] == Op.MARK) & (rows[:, 2] >= EXPERTS_MARKS.start))
    pieces = []
    start = 0
    for border in at:
        replay = tile.replay[start:border]
        pieces.append((Tile(rows[start:border], replay, bool(replay.any())), int(rows[border, 2]),
                       bool(tile.replay[border])))
        start = int(border) + 1
    replay = tile.replay[start:]
    pieces.append((Tile(rows[start:], replay, bool(replay.any())), 0, False))
    return tuple(pieces)


# ---- the walk -------------------------------------------------------------------------------------------------------
class _Walk:
    """Passes over the layers of one stage."""

    def __init__(self, plan: Plan, workload: Workload, builder: Builder, flow: Flow,
                 tiles: dict[int, LayerTiles]) -> None:
        self.plan, self.out, self.flow, self.tiles = plan, builder, flow, tiles
        self.tables = builder.tables
        self.begin = {True: self.tables.hook("fwd:begin"), False: self.tables.hook("bwd:begin")}
        self.end = {True: self.tables.hook("fwd:end"), False: self.tables.hook("bwd:end")}
        self.input = self.tables.slot("input_ids_and_labels", "input")
        self.input_bytes = 2 * 8 * workload.batch * workload.seq
        parts = plan.mesh.tp if plan.framework.sequence_parallel else 1
        width = plan.graph.architecture.hidden * dtype_bytes(plan.framework.compute_dtype)
        self.hidden_bytes = workload.batch * workload.seq // parts * width
        self.border = self.tables.comm("send_recv", "pp", plan.framework.compute_dtype)
        self.first, self.last = plan.layers[0], plan.layers[-1]
        self.is_first, self.is_last = plan.stage == 0, plan.stage == plan.mesh.pp - 1
        self.norm = next((layer for layer in plan.layers if self._kind(layer) == "final_norm"), -1)
        self.head = next((layer for layer in plan.layers if self._kind(layer) == "head"), -1)

    def _kind(self, layer: int) -> str:
        return self.plan.graph.kinds[self.plan.graph.layers[layer].kind].name

    def forward(self, action: Action) -> None:
        out, flow = self.out, self.flow
        out.at(Phase.FORWARD, action.microbatch)
        out.alloc(self.first, self.input, self.input_bytes)
        out.mark(self.begin[True])
        flow.begin_microbatch(action)
        if not self.is_first:
            self._receive(self.first - 1, HIDDEN, forward=True)
        for layer in self.plan.layers:
            if self._kind(layer) == "loss":
                out.at(Phase.LOSS)
            flow.forward_begin(layer)
            self._pass(layer, self.tiles[layer].forward)
            flow.forward_end(layer)
            if layer != self.head:
                out.tile(self.tiles[layer].after, layer)
            if layer == self.norm and self.is_first:
                out.tile(self.tiles[self.first + 1].late, self.first + 1)
        if self.is_first and self.norm < 0:
            out.tile(self.tiles[self.first + 1].late, self.first + 1)
        if self.head >= 0:
            out.tile(self.tiles[self.head].after, self.head)
        if not self.is_last:
            self._send(self.last, HIDDEN, forward=True)
        flow.end_pass(action)
        out.mark(self.end[True])

    def backward(self, action: Action) -> None:
        out, flow = self.out, self.flow
        out.at(Phase.BACKWARD, action.microbatch)
        out.mark(self.begin[False])
        flow.begin_microbatch(action)
        if not self.is_last:
            self._receive(self.last + 1, GRAD_HIDDEN, forward=False)
        for layer in reversed(self.plan.layers):
            out.tile(self.tiles[layer].seed, layer)
            flow.backward_begin(layer)
            self._pass(layer, self.tiles[layer].backward)
            flow.backward_end(layer, self._outer_grads(layer))
        if not self.is_first:
            self._send(self.first, GRAD_HIDDEN, forward=False)
        flow.end_pass(action)
        if self.is_last:
            out.tile(self.tiles[self.last].late, self.last)
        elif not self.plan.framework.frees_sent_output:
            out.free(self.last, HIDDEN, self.hidden_bytes)
        out.free(self.first, self.input, self.input_bytes)
        out.mark(self.end[False])

    def _pass(self, layer: int, pieces: Sequence[tuple[Tile, int, bool]]) -> None:
        for tile, mark, replay in pieces:
            self.out.tile(tile, layer)
            if mark:
                self.flow.experts(layer, mark, self._expert_grads(layer), replay=replay)

    def _expert_grads(self, layer: int) -> list[tuple[Param, int, int]]:
        return [g for g in self.tiles[layer].grads if ".experts." in f".{g[0].name}"]

    def _outer_grads(self, layer: int) -> list[tuple[Param, int, int]]:
        pieces = self.tiles[layer].backward
        inner = self._expert_grads(layer) if any(mark for _, mark, _ in pieces) else []
        return [g for g in self.tiles[layer].grads if g not in inner]

    def _receive(self, layer: int, slot: int, *, forward: bool) -> None:
        """Hidden states, or their gradient, come from the neighbouring stage."""
        self.out.alloc(layer, slot, self.hidden_bytes)
        self.out.collective(layer, self.border, self.hidden_bytes, Stream.RECEIVE, _border_handle(forward=forward))
        self.out.wait(layer, _border_handle(forward=forward))

    def _send(self, layer: int, slot: int, *, forward: bool) -> None:
        self.out.collective(layer, self.border, self.hidden_bytes, Stream.SEND, _border_handle(forward=forward))
        if not forward or self.plan.framework.frees_sent_output:
            self.out.free(layer, slot, self.hidden_bytes)


def _border_handle(*, forward: bool) -> int:
    return 8 if forward else 9
