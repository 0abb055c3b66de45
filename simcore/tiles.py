"""Recording: each kind of layer once, cut into tiles that a program lays end to end.

Comes in: a plan (what parameters look like on this rank) and the workload. Goes out: `LayerTiles` of every layer of the
stage, and the tables that their rows point into. Equal layers, and equal jobs, share their recording.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simcore.graph import ModelGraph
from simcore.models.blocks import LayerKind
from simcore.plan import Placed, Plan
from simcore.program import Tables
from simcore.recording import LayerTape, Run
from simcore.tape import Op, Param
from simcore.tile import Tile

__all__ = ["LayerTiles", "Workload", "record_layers"]

TIED_HEAD = 1 << 30
"""Layer offset of rows that belong to a tied head, wherever it is."""

EXPERTS_MARKS = range(2, 6)
"""Marks that a tape puts around an experts module that is a unit of its own."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one rank computes per microbatch. `seq` positions of its own; `rows_per_token`: see `recording.Run`."""

    batch: int
    seq: int
    rows_per_token: int


@dataclass(frozen=True, eq=False)
class LayerTiles:
    """A recorded kind as tiles; passes are cut where an experts unit begins or ends: (tile, mark or 0, in replay)."""

    forward: tuple[tuple[Tile, int, bool], ...]
    backward: tuple[tuple[Tile, int, bool], ...]
    after: Tile
    late: Tile
    seed: Tile
    grads: tuple[tuple[Param, int, int], ...]


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
                "ep", workload.rows_per_token, key[1], key[2], framework.options)
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
        pieces.append((Tile(rows[start:border], tile.replay[start:border]), int(rows[border, 2]),
                       bool(tile.replay[border])))
        start = int(border) + 1
    pieces.append((Tile(rows[start:], tile.replay[start:]), 0, False))
    return tuple(pieces)
