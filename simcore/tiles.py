"""Recording: each kind of layer once, cut into tiles that a program lays end to end.

Comes in: a plan (what parameters look like on this rank) and the workload. Goes out: a `Recording`: tiles of every kind
of layer of the stage and of its borders, and the tables that their rows point into. Equal layers, and equal jobs, share
their recording.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache

import numpy as np

from simcore.graph import ModelGraph
from simcore.models.blocks import Embedding, Head, LayerKind, Loss, Mtp
from simcore.outline import Tables
from simcore.plan import Placed, PlacedKind, Plan
from simcore.recording import LayerTape, Run
from simcore.tape import GRAD_HIDDEN, HIDDEN, Op, Param, Row, Section, Stream
from simcore.tile import Tile
from simcore.units import dtype_bytes

__all__ = ["BORDER_HANDLES", "Edges", "LayerTiles", "Recording", "Shape", "Workload", "keys_of", "record_layers",
           "run_of"]

TIED_HEAD = 1 << 30
"""Layer offset of rows that belong to a tied head, wherever it is."""

_MARK = int(Op.MARK)
EXPERTS_MARKS = range(2, 6)
"""Marks that a tape puts around an experts module that is a unit of its own; passes are cut there and at later ones."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one rank computes per microbatch. `seq` positions of its own; rows of experts: see `recording.Run`.

    `spaces`: workspaces of libraries, as (name, bytes). `packed`: (sequences, attended), `packing.Packing`.
    """

    batch: int
    seq: int
    rows_per_token: int
    sent_per_token: int = 0
    spaces: tuple[tuple[str, int], ...] = ()
    packed: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class LayerTiles:
    """A recorded kind as tiles; passes are cut where an experts unit begins or ends: (tile, mark or 0, in replay).

    `rest`: before a step. `again`: the replay of a layer that is not replayed alone; others are part of `backward`.
    """

    forward: tuple[tuple[Tile, int, bool], ...]
    backward: tuple[tuple[Tile, int, bool], ...]
    after: Tile
    late: Tile
    seed: Tile
    again: Tile
    grads: tuple[tuple[Param, int, int], ...]
    rest: Tile

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """All of them, in a fixed order."""
        passes = (t for t, _, _ in (*self.forward, *self.backward))
        return (*passes, self.after, self.late, self.seed, self.again, self.rest)

    @property
    def shape(self) -> tuple[object, ...]:
        """All but bytes and FLOPs: where passes are cut, which rows they have, which gradients they leave."""
        cuts = tuple(tuple(cut[1:] for cut in cuts) for cuts in (self.forward, self.backward))
        return cuts, tuple(t.structure for t in self.tiles), self.grads


@dataclass(frozen=True, eq=False)
class Edges:
    """What a pass brings in and hands on: tokens and labels; hidden states, or their gradient, between stages.

    `mask` is there while forward runs. `keep_hidden`, `keep_grad`: somebody besides the layers holds what crossed.
    `defer`: the head's input and the gradient of its output wait.
    """

    tokens: Tile
    drop_tokens: Tile
    mask: Tile
    drop_mask: Tile
    receive_hidden: Tile
    await_hidden: Tile
    send_hidden: Tile
    keep_hidden: Tile
    drop_hidden: Tile
    receive_grad: Tile
    await_grad: Tile
    send_grad: Tile
    keep_grad: Tile
    drop_grad: Tile
    defer: Tile
    drop_deferred: Tile

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """All of them, in a fixed order."""
        return tuple(getattr(self, one.name) for one in fields(self))


Key = tuple[int, bool, bool, str]
"""A kind of layer, whether it is the first block, whether its input carries a gradient, what is recomputed of it."""


class Shape:
    """What an outline sees of a recording. Recordings of one shape differ in bytes and FLOPs alone."""


@dataclass(frozen=True)
class Recording:
    """Recorded kinds, by key; equal if of one shape. `standing`: what no layer can post; `wide`: edges of two parts."""

    shape: Shape
    tables: Tables = field(compare=False)
    kinds: dict[Key, LayerTiles] = field(compare=False)
    edges: Edges = field(compare=False)
    wide: Edges = field(compare=False)
    standing: Tile = field(compare=False)

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """All tiles, in an order that equal recordings share."""
        kinds = (tile for kind in self.kinds.values() for tile in kind.tiles)
        return (*kinds, *self.edges.tiles, *self.wide.tiles, self.standing)


def keys_of(plan: Plan) -> dict[int, Key]:
    """Which recorded kind each layer of the plan's stage is."""
    first_block = plan.layers[0] + 1 if plan.stage == 0 else -1
    below = _trained_below(plan)
    framework, spared = plan.framework, set(plan.framework.kept_whole)
    return {layer: (plan.graph.layers[layer].kind, layer == first_block, below[layer],
                    "none" if layer in spared else framework.checkpoint) for layer in plan.layers}


def record_layers(plan: Plan, workload: Workload) -> Recording:
    """Every kind of layer of the plan's stage."""
    runs = {key: run_of(plan, key, workload) for key in dict.fromkeys(keys_of(plan).values())}
    return _record(plan.graph, tuple(runs.items()), workload.spaces)


def run_of(plan: Plan, key: Key, workload: Workload) -> Run:
    """What an implementation is told of one kind of layer."""
    framework, mesh = plan.framework, plan.mesh
    tied = plan.graph.architecture.tied and plan.graph.kinds[key[0]].block is not None
    params = _params(plan.kinds[key[0]], plan.graph.used_twice, tied=tied)
    return Run(workload.batch, workload.seq, framework.compute_dtype, params, framework.loss, key[3], mesh.tp,
               framework.sequence_parallel, mesh.cp, mesh.ep, mesh.etp, "ep", workload.rows_per_token, key[1], key[2],
               framework.options, workload.sent_per_token, *workload.packed)


class _Params(dict[str, Param]):
    """Parameters by name; hashable, so that equal layers are recorded once."""

    def __init__(self, params: tuple[Param, ...]) -> None:
        super().__init__((p.name, p) for p in params)
        self._hash = hash(params)

    def __hash__(self) -> int:  # type: ignore[override]
        return self._hash


@lru_cache(maxsize=1024)
def _params(kind: PlacedKind, twice: frozenset[str], *, tied: bool) -> _Params:
    return _Params(tuple(_param(p, tied=tied or p.spec.name in twice) for p in kind if not p.spec.is_buffer))


def _param(placed: Placed, *, tied: bool) -> Param:
    life = placed.life
    shape = (placed.used_copies, *placed.used_shape) if placed.spec.copies > 1 else placed.used_shape
    trainable = placed.spec.trainable and not placed.spec.is_buffer
    return Param(placed.spec.name, shape, life.use.dtype, trainable, life.grad_made_category,
                 life.grad_made_category == "", tied)


def _trained_below(plan: Plan) -> dict[int, bool]:
    """For each layer of the stage, whether its input carries a gradient."""
    kind_of = [layer.kind for layer in plan.graph.layers]
    trains = [kind.is_trained for kind in plan.kinds]
    first = next((layer for layer, kind in enumerate(kind_of) if trains[kind]), len(kind_of))
    return {layer: layer > first for layer in plan.layers}


@lru_cache(maxsize=128)
def _record(graph: ModelGraph, runs: tuple[tuple[Key, Run], ...], spaces: tuple[tuple[str, int], ...]) -> Recording:
    operators = importlib.import_module(f"simcore.operators.{graph.implementation}")
    tables = Tables()
    tiles = {}
    head = next((i for i, layer in enumerate(graph.layers) if graph.kinds[layer.kind].name == "head"), 0)
    for key, run in runs:
        kind: LayerKind = graph.kinds[key[0]]
        grouped = key[3] == "uniform" and kind.block is None
        tapes = [operators.record(kind, replace(run, checkpoint=how) if grouped else run, tables.slots, tables.comms)
                 for how in (("full", "none") if grouped else ("",))]
        tiles[key] = _together(*(_tiles(tape, head) for tape in tapes)) if grouped else _tiles(tapes[0], head)
    standing = operators.standing if hasattr(operators, "standing") else _no_standing
    own = standing([(graph.kinds[key[0]], run) for key, run in runs])
    kept = _tile(*((Op.ALLOC, tables.slot(name, "workspace"), size) for name, size in (*own.items(), *spaces) if size))
    edges, wide = (_edges(runs[0][1], [graph.kinds[key[0]].block for key, _ in runs],
                          graph.architecture.hidden * width, tables) for width in (1, 2))
    shape = _shape(tuple(tables.slots), tuple(tables.comms), tuple(t.structure for t in (kept, *edges.tiles)),
                   tuple((key, kind.shape) for key, kind in tiles.items()))
    return Recording(shape, tables, tiles, edges, wide, kept)


@lru_cache(maxsize=256)
def _shape(*parts: object) -> Shape:
    return Shape()


def _edges(run: Run, blocks: Sequence[object], hidden: int, tables: Tables) -> Edges:
    """Tokens and labels are int64; hidden states are cut over tp where the framework keeps sequences parallel.

    Stages with an embedding or a loss get the data loader's mask, a byte for each pair of positions.
    """
    tokens, border = tables.slot("input_ids_and_labels", "input"), tables.comm("send_recv", "pp", run.compute)
    of_tokens = 2 * 8 * run.tokens
    of_hidden = run.tokens // (run.tp if run.sequence_parallel else 1) * hidden * dtype_bytes(run.compute)
    ends = any(isinstance(block, Embedding | Loss | Mtp) for block in blocks)
    squares = ends and dict(run.options).get("create_attention_mask") == "true"
    mask, of_mask = tables.slot("attention_mask", "input"), run.tokens * run.seq * run.cp * squares
    vocab = sum(block.vocab for block in blocks if isinstance(block, Head)) // run.tp
    waiting = tables.slot("deferred_head", "activation")
    of_head = of_hidden + run.tokens * vocab * dtype_bytes(run.compute)
    (receive, wait, send), (receive_grad, wait_grad, send_grad) = (
        _messages(border, of_hidden, handle) for handle in BORDER_HANDLES)
    return Edges(
        _tile((Op.ALLOC, tokens, of_tokens)), _tile((Op.FREE, tokens, -of_tokens)),
        _tile(*((Op.ALLOC, mask, of_mask),) * squares), _tile(*((Op.FREE, mask, -of_mask),) * squares),
        _tile((Op.ALLOC, HIDDEN, of_hidden), receive), _tile(wait), _tile(send), _tile((Op.ALLOC, HIDDEN, of_hidden)),
        _tile((Op.FREE, HIDDEN, -of_hidden)), _tile((Op.ALLOC, GRAD_HIDDEN, of_hidden), receive_grad),
        _tile(wait_grad), _tile(send_grad), _tile((Op.ALLOC, GRAD_HIDDEN, of_hidden)),
        _tile((Op.FREE, GRAD_HIDDEN, -of_hidden)), _tile((Op.ALLOC, waiting, of_head)),
        _tile((Op.FREE, waiting, -of_head)))


BORDER_HANDLES = 8, 9
"""Handles of what crosses a stage border: in forward, in backward."""


def _messages(comm: int, size: int, handle: int) -> tuple[tuple[int, ...], ...]:
    """(receive, wait for it, send)."""
    return ((Op.COLLECTIVE, comm, size, Stream.RECEIVE, handle), (Op.WAIT, 0, 0, 0, handle),
            (Op.COLLECTIVE, comm, size, Stream.SEND, handle))


@lru_cache(maxsize=1024)
def _tile(*rows: tuple[int, ...]) -> Tile:
    """Rows of (op, slot, amount, stream, handle), of the layer where the tile is laid; what is left out is 0.

    Equal ones are one tile, and nobody changes its rows: those of stage borders do not depend on what a layer is.
    """
    full: list[Row] = [(op, 0, slot, amount, *(rest or (0, 0))) for op, slot, amount, *rest in rows]
    return Tile.of(Section(tuple(full)))


def _no_standing(runs: object) -> dict[str, int]:
    return {}


def _tiles(tape: LayerTape, head: int) -> LayerTiles:
    """`head`: where rows of the embedding that are a tied head's point to."""
    backward = Tile.of(tape.backward)
    backward.rows[backward.rows[:, 1] >= TIED_HEAD, 1] = head
    after, late, seed, rest = (Tile.of(part) if part.rows else _tile() for part in (
        tape.after, tape.late, tape.seed, tape.rest))
    return LayerTiles(_cut(Tile.of(tape.forward)), _cut(backward), after, late, seed, _tile(), tape.grads, rest)


def _together(lean: LayerTiles, whole: LayerTiles) -> LayerTiles:
    """A layer of a group that is replayed as one: `lean` as it runs first, then forward and backward of `whole`.

    What the module itself still holds of the first run goes when the replay has put its own there.
    """
    left: dict[int, int] = {}
    for tile in (*(t for t, _, _ in lean.forward), lean.after, lean.late):
        for layer, slot, size in tile.nets.tolist():
            if layer == 0 and slot != HIDDEN:
                left[slot] = left.get(slot, 0) + size
    freed = _tile(*((Op.FREE, slot, -size) for slot, size in left.items() if size))
    rows = np.concatenate([*(t.rows for t, _, _ in whole.forward), whole.after.rows, whole.late.rows, freed.rows])
    again = Tile(rows, np.ones(len(rows), dtype=np.int64))
    return LayerTiles(lean.forward, whole.backward, lean.after, lean.late, whole.seed, again, whole.grads, lean.rest)


def _cut(tile: Tile) -> tuple[tuple[Tile, int, bool], ...]:
    """Split a pass at the borders of an experts unit, and at its first gradient where that is marked."""
    rows, pieces, start = tile.rows, [], 0
    at = np.flatnonzero((rows[:, 0] == _MARK) & (rows[:, 2] >= EXPERTS_MARKS.start))
    if not len(at):
        return ((tile, 0, False),)
    for border in at:
        pieces.append((Tile(rows[start:border], tile.replay[start:border]), int(rows[border, 2]),
                       bool(tile.replay[border])))
        start = int(border) + 1
    pieces.append((Tile(rows[start:], tile.replay[start:]), 0, False))
    return tuple(pieces)
