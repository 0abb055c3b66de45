"""Lowering: the program of one rank class.

Input: a plan (the layout of every tensor on this class) and the workload. Output: a `Program`. The walk is the same for
all frameworks: microbatches in the order of the pipeline schedule, layers in the order of the graph; at each border the
framework's hooks post what they gather, free and reduce. Layers are recorded once per kind.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from simcore.models.blocks import Attention, LayerKind
from simcore.models.pooled_blocks import PooledStem
from simcore.pipeline.schedule import Action, Pass
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import HooksFactory, MemoryHooks, SizedHooks
from simcore.program.layer_inputs import LayerInputs
from simcore.program.layer_passes import LayerPasses
from simcore.program.offloaded_layers import OffloadedLayers
from simcore.program.outline import Phase, StepTemplate
from simcore.program.program import Program
from simcore.program.received import refilled, tracker, unheld
from simcore.program.record_layers import RecordedLayers, Workload, keys_of, record_layers
from simcore.program.reference_pass import OF_LOSS, PassesBeside, Returned, end_model
from simcore.program.repeated_passes import RepeatedPasses
from simcore.program.row_cache import held
from simcore.program.shared_steps import shared_step
from simcore.program.stage_borders import Edges
from simcore.program.stash_order import StashOrder
from simcore.program.tile import LayerRows
from simcore.recording.rows import STASH_BORDER

__all__ = ["lower"]


def lower(plan: Plan, workload: Workload, actions: Iterable[Action], hooks_of: HooksFactory, *,
          updates: bool = True) -> Program:
    """Program of the plan's rank: all of its operations in a step, in order of issue.

    `actions`: this rank's forward and backward passes, in order, of the microbatches that are simulated one by one.
    `workload`: sizes of a microbatch. `hooks_of`: makes the framework's hooks, which post what it gathers, frees and
    reduces between layers. `updates`: False for passes of a model that does not train, without the optimizer's step.
    """
    order = tuple(actions)
    recording = record_layers(plan, workload, several=any(action.microbatch for action in order))
    outline, places = _outline(plan, recording, order, hooks_of, updates=updates)
    tiles = (own if place < 0 else recording.tiles[place] for own, place in zip(outline.tiles, places, strict=True))
    return Program(outline, tuple(tiles))


@held()
def _outline(plan: Plan, recording: RecordedLayers, actions: tuple[Action, ...], hooks_of: HooksFactory, *,
             updates: bool) -> tuple[StepTemplate, tuple[int, ...]]:
    """The step template, and the index in `recording.tiles` of each of its tiles, or -1 for a tile of the hooks.

    The walk and the hooks read only the plan, the order of passes and the recording's shape, which are the cache's key;
    bytes and FLOPs of layers are only in their tiles.
    """
    try:
        if isinstance(hooks_of, SizedHooks):
            walk = partial(_walk, plan, actions, updates=updates)
            shared = shared_step(plan, recording, (actions, updates, unheld(plan, recording)), hooks_of, walk)
            if shared is not None:
                return shared
        outline = _walked(plan, recording, actions, hooks_of, updates=updates)
    except struct.error as error:
        raise OverflowError("sizes pass 64 bits") from error
    numbers = {id(tile): number for number, tile in enumerate(recording.tiles)}
    return outline, tuple(numbers.get(id(tile), -1) for tile in outline.tiles)


def _walked(plan: Plan, recording: RecordedLayers, actions: tuple[Action, ...], hooks_of: HooksFactory, *,
            updates: bool) -> StepTemplate:
    tables = recording.tables.copy()
    builder = Builder(tables)
    hooks = hooks_of(plan, tables, builder)
    hooks.post_persistent()
    _walk(plan, actions, hooks, recording, builder, updates=updates)
    return builder.build([layer.path for layer in plan.graph.layers])


def _walk(plan: Plan, actions: tuple[Action, ...], hooks: MemoryHooks, recording: RecordedLayers, builder: Builder, *,
          updates: bool) -> None:
    """Writes the step behind what hooks allocate across steps."""
    walk = _Walk(plan, builder, hooks, recording, trains=updates)
    builder.tile(recording.standing, plan.layers[0])
    walk.post_persistent()
    walk.step(actions)
    if updates:
        builder.at(Phase.OPTIMIZER)
        hooks.optimize()


# ---- the walk -------------------------------------------------------------------------------------------------------
class _Chunk:
    """One of the rank's parts of the model: its layers, and whether the model begins or ends with it.

    Groups of layers that are replayed together: `replayed_at`: group by its last layer; `last_of`: last layer by the
    first; `unkept`: layers whose input is not saved.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        self.layers = plan.chunks[number]
        self.first, self.last = self.layers[0], self.layers[-1]
        ends = {layers[0] for layers in plan.chunks} | {layers[-1] for layers in plan.chunks}
        self.is_first, self.is_last = self.first == 0, self.last == len(plan.graph.layers) - 1
        self.follows, self.precedes = self.first - 1 in ends, self.last + 1 in ends
        self.begun = self.first + plan.graph.num_tower_parts  # the last part before the layers
        kinds = {layer: plan.graph.kinds[plan.graph.layers[layer].kind] for layer in self.layers}
        # Parts before the layers that hold something until the layers are done: the last one, and the tower's end.
        last = kinds.get(self.begun)
        held = 1 + (last is not None and isinstance(last.block, PooledStem))
        self.stem_parts = tuple(range(self.begun, self.begun - held, -1)) if self.begun > self.first else ()
        self.lenders = tuple(layer for layer, kind in kinds.items() if layer > self.begun + 1 and _lends(kind))
        names = {_kind(plan, layer): layer for layer in self.layers}
        self.norm, self.head = names.get("final_norm", -1), names.get("head", -1)
        self.losses = frozenset(layer for layer in self.layers if _kind(plan, layer) == "loss")
        inner = [layer for layer in self.layers if plan.graph.kinds[plan.graph.layers[layer].kind].block is None]
        size = plan.framework.recomputed_together
        groups = [inner[i:i + size] for i in range(0, len(inner), size)] if size > 1 else []
        self.replayed_at = {group[-1]: group for group in groups}
        self.last_of = {group[0]: group[-1] for group in groups}
        self.unkept = {layer for group in groups for layer in group[1:]}


def _lends(kind: LayerKind) -> bool:
    """True for a layer whose keys and values others use, which the model holds until all are done."""
    return any(isinstance(branch.block, Attention) and branch.block.lent and not branch.block.borrows
               for branch in kind.branches)


def _kind(plan: Plan, layer: int) -> str:
    return plan.graph.kinds[plan.graph.layers[layer].kind].name


class _Walk:
    """Passes over the layers of one stage."""

    def __init__(self, plan: Plan, builder: Builder, hooks: MemoryHooks, recording: RecordedLayers, *,
                 trains: bool) -> None:
        self.plan, self.out, self.hooks, self.edges, self.wide = plan, builder, hooks, recording.edges, recording.wide
        self.tiles = {layer: recording.kinds[key] for layer, key in keys_of(plan).items()}
        self.later = {layer: recording.later.get(key, recording.kinds[key]) for layer, key in keys_of(plan).items()}
        self.have_grads: set[int] = set()
        self.trains, self.tables = trains, builder.tables
        self.begin = {True: self.tables.hook("fwd:begin"), False: self.tables.hook("bwd:begin")}
        self.end = {True: self.tables.hook("fwd:end"), False: self.tables.hook("bwd:end")}
        self.chunks = [_Chunk(plan, number) for number in range(len(plan.chunks))]
        self.received: set[Pass] = set()
        self.kept: _Chunk | None = None
        self.unheld = unheld(plan, recording)
        self.refilled = refilled(plan, recording)
        self.past = tracker(plan, builder, tuple(self._behind(chunk.first - 1) for chunk in self.chunks), self.unheld)
        self.inputs = LayerInputs(plan, builder, recording.edges)
        self.waiting = 0
        self.offloaded = OffloadedLayers(plan, builder, self.tiles)
        self.passes = RepeatedPasses(builder, hooks)
        self.stash = StashOrder(builder, self.tiles)
        self.returned = Returned(plan, builder, recording.edges, self.tiles)
        self.beside = PassesBeside(plan, hooks, recording, self.returned)

    def post_persistent(self) -> None:
        """Posts what the previous step left: of layers, and received across stage boundaries."""
        for layer, tiles in self.tiles.items():
            self.out.tile(tiles.rest, layer)
        self.past.post_persistent()
        if self.trains:
            self.inputs.hold()

    def step(self, actions: Sequence[Action]) -> None:
        """Walks all passes, in order; between runs of the schedule nothing is in flight."""
        size = self.plan.framework.schedule.run
        for _, passes in groupby(actions, key=lambda action: size and action.microbatch // size):
            self._run(tuple(passes))

    def _run(self, actions: Sequence[Action]) -> None:
        self.past.begin_run(len({action.microbatch for action in actions}))
        for index, action in enumerate(actions):
            chunk, phase = self.chunks[action.chunk], Phase.FORWARD if action.forward else Phase.BACKWARD
            self.stash.begin(actions, index, chunk.layers)
            self.out.at(phase, action.microbatch)
            self.forward(action, chunk) if action.forward else self.backward(action, chunk)
            self.out.mark(self.end[action.forward])
            if not self.trains:  # no backward pass will need them
                self.out.tile(self.edges.drop_tokens, chunk.first)
                self._stem(chunk, self.edges.drop_stem)
            for key in action.ahead:
                self.received.add(key)
                self.out.at(phase, key[2])
                self._receive(key)
            if not action.keeps_output:
                self._drop_kept()
        self._end_run()

    def _end_run(self) -> None:
        """Frees what waited for the run's end (core 0.16.1 `schedules.py`, finish_embedding_wgrad_compute)."""
        for _ in range(self.waiting):
            self.out.tile(self.edges.drop_deferred, self.chunks[-1].head)
        self.past.end_run()

    def forward(self, action: Action, chunk: _Chunk) -> None:
        out, hooks = self.out, self.hooks
        out.tile(self.edges.tokens, chunk.first)
        out.mark(self.begin[True])
        hooks.begin_microbatch(action)
        self.beside.ahead()
        out.tile(self.edges.mask, chunk.first)
        self._take_in(action, chunk)
        self._stem(chunk, self.edges.stem, self.edges.passing)
        if not chunk.is_first:
            self.past.begin_forward(action.chunk)
        self.inputs.drop()
        self.passes.write((True, action.chunk, self.stash.kept), partial(self._up, chunk))
        if chunk.norm < 0 and (chunk.last > chunk.first or not chunk.is_first):
            self._drop_stem(chunk)
        if not (chunk.is_last or chunk.precedes):
            out.tile(self._behind(chunk.last).send_hidden, chunk.last)
            self._free_sent(action, chunk)
        if chunk.last not in chunk.losses:
            end_model(out, self.edges, self.tiles, chunk.layers, chunk.head, self.plan.framework.loss)
        self.past.end_forward(action)
        hooks.end_pass(action)

    def _up(self, chunk: _Chunk) -> None:
        """Runs the forward of a chunk's layers."""
        for layer in chunk.layers:
            if layer in chunk.losses:
                self.out.at(Phase.LOSS)
            self.offloaded.forward_begin(layer)
            self.hooks.forward_begin(layer)
            self._pass(layer, self.tiles[layer], self.tiles[layer].forward)
            if layer == chunk.last and layer in chunk.losses:
                end_model(self.out, self.edges, self.tiles, chunk.layers, chunk.head, self.plan.framework.loss)
            self.hooks.forward_end(layer)
            self._drop_behind(layer, chunk)
        self.stash.end_forward()

    def _drop_behind(self, layer: int, chunk: _Chunk) -> None:
        """Frees what the caller of a layer drops when it has returned; an input may be a stage's buffer again."""
        if layer != chunk.head:
            self.returned.drop(self.tiles[layer].after, layer, waits=chunk.begun < layer < chunk.norm)
        if layer in self.unheld:
            self.out.tile(self.edges.keep_hidden, layer - 1)
        if layer in chunk.unkept:
            self.out.tile(self.edges.drop_hidden, layer - 1)
        if layer == chunk.norm:
            self._drop_stem(chunk)

    def _drop_stem(self, chunk: _Chunk) -> None:
        """Frees what the model's inner part holds for its layers, and of its vision tower, when it has returned."""
        self._stem(chunk, self.edges.drop_passing)
        for layer in (chunk.begun + 1, *chunk.lenders, *chunk.stem_parts) if chunk.is_first else ():
            self.returned.drop(self.tiles[layer].late, layer, waits=layer == chunk.begun + 1)

    def backward(self, action: Action, chunk: _Chunk) -> None:
        """Backward of a chunk.

        A split backward of the model's first chunk runs in its second part (`zero_bubble.py`).
        """
        self.out.mark(self.begin[False])
        actual = replace(action, part="whole") if chunk.is_first and action.part == "weight" else action
        self.hooks.begin_microbatch(actual)
        if action.part != "weight":
            self._take_in(action, chunk)
        if actual.part == "weight":
            self._weights(actual, chunk)
        elif actual.part == "whole" or not chunk.is_first:
            self._down(actual, chunk)

    def _down(self, action: Action, chunk: _Chunk) -> None:
        """Walks from the gradient of the chunk's output to that of its input."""
        out, tiles = self.out, self._backward_tiles(action)
        defers = chunk.head >= 0 and action.microbatch < self.plan.framework.deferred_heads
        self.waiting += defers
        self.passes.write((False, action.chunk, tiles is self.later, defers, self.stash.kept),
                          partial(self._back, chunk, tiles, defers=defers))
        self._stem(chunk, self.edges.drop_stem)
        if not chunk.is_first:
            if not chunk.follows:
                out.tile(self._behind(chunk.first - 1).send_grad, chunk.first)
            self.past.grad(action)
        self.hooks.end_pass(action)
        self._release(action, chunk)
        if chunk.is_last:
            out.tile(self.tiles[chunk.last].late, chunk.last)
        self.past.end_backward(action)
        self.inputs.hold()
        if action.part == "whole":
            self._let_go(action, chunk)

    def _back(self, chunk: _Chunk, tiles: Mapping[int, LayerPasses], *, defers: bool) -> None:
        """Runs the backward of a chunk's layers; `defers`: the head's gradients of its parameters come later."""
        out, hooks = self.out, self.hooks
        self.stash.begin_backward()
        for layer in reversed(chunk.layers):
            for again in chunk.replayed_at.get(layer, ()):
                out.tile(self.tiles[again].again, again)
            out.tile(self.tiles[layer].seed, layer)
            self.offloaded.backward_begin(layer)
            hooks.backward_begin(layer)
            self._pass(layer, tiles[layer], tiles[layer].backward)
            if layer in self.refilled:
                out.tile(self.edges.keep_grad, layer + 1)
            hooks.backward_end(layer, tiles[layer].outer_grads)
            if len(tiles[layer].behind.rows):
                out.tile(tiles[layer].behind, layer)
            if layer in chunk.last_of:  # the replay's own output
                out.tile(self.edges.drop_hidden, chunk.last_of[layer])
            if layer == chunk.head and defers:
                out.tile(self.edges.defer, layer)
        self.offloaded.backward_end()

    def _release(self, action: Action, chunk: _Chunk) -> None:
        """Frees tensors that only the graph refers to; the first part of a split backward keeps them."""
        for layer in chunk.layers if action.part == "whole" else ():
            if len(self.tiles[layer].release.rows):
                self.out.tile(self.tiles[layer].release, layer)

    def _weights(self, action: Action, chunk: _Chunk) -> None:
        """Gradients of parameters, in the order of layers; then the graph is freed (`recording/split_backward.py`)."""
        tiles = self._backward_tiles(action)
        for layer in chunk.layers:
            self.out.tile(tiles[layer].weight, layer)
            self.hooks.backward_end(layer, tiles[layer].outer_grads)
            if layer == chunk.first and layer not in self.unheld:  # it has released the input, whose buffer stays
                self.out.tile(self._behind(layer - 1).keep_hidden, layer - 1)
        for layer in chunk.layers:
            self.out.tile(tiles[layer].release, layer)
        self.hooks.end_pass(action)
        self.past.end_backward(action)
        self._let_go(action, chunk)

    def _stem(self, chunk: _Chunk, *tiles: LayerRows) -> None:
        """Posts `tiles` on a chunk after the model's first, for tensors that its stem makes in the first."""
        for tile in () if chunk.is_first else (one for one in tiles if len(one.rows)):
            self.out.tile(tile, chunk.first)

    def _let_go(self, action: Action, chunk: _Chunk) -> None:
        """Frees what the schedule kept of a microbatch until its backward pass was over."""
        if not (chunk.is_last or chunk.precedes or self.plan.framework.frees_sent_output):
            self.out.tile(self._behind(chunk.last).drop_hidden, chunk.last)
        self.out.tile(self.edges.drop_tokens, chunk.first)

    # ---- what crosses borders ---------------------------------------------------------------------------------------
    def _behind(self, layer: int) -> Edges:
        """Edges of the border after a layer, as wide as the outputs that pass it."""
        return self.wide if layer >= 0 and self.plan.graph.passing[layer] > 1 else self.edges

    def _take_in(self, action: Action, chunk: _Chunk) -> None:
        """Waits for the pass's input from the neighbouring stage, which may have begun to arrive earlier."""
        if (chunk.is_first or chunk.follows) if action.forward else (chunk.is_last or chunk.precedes):
            return
        if action.key not in self.received:
            self._receive(action.key)
        wait, layer = ((self.edges.await_hidden, chunk.first - 1) if action.forward
                       else (self.edges.await_grad, chunk.last + 1))
        self.out.tile(wait, layer)

    def _receive(self, key: Pass) -> None:
        forward, number, _ = key
        chunk = self.chunks[number]
        self.past.take(key)
        tile, layer = ((self._behind(chunk.first - 1).receive_hidden, chunk.first - 1) if forward
                       else (self._behind(chunk.last).receive_grad, chunk.last + 1))
        self.out.tile(tile, layer)

    def _free_sent(self, action: Action, chunk: _Chunk) -> None:
        if self.plan.framework.frees_sent_output:
            self.kept = chunk
            if not (action.keeps_output or action.ahead):
                self._drop_kept()

    def _drop_kept(self) -> None:
        if self.kept is not None:
            self.out.tile(self._behind(self.kept.last).drop_hidden, self.kept.last)
            self.kept = None

    # ---- layers -----------------------------------------------------------------------------------------------------
    def _backward_tiles(self, action: Action) -> dict[int, LayerPasses]:
        """Passes of layers for the chunk's first gradients of parameters, or for later ones."""
        tiles = self.later if action.chunk in self.have_grads else self.tiles
        if action.part != "input":
            self.have_grads.add(action.chunk)
        return tiles

    def _pass(self, layer: int, tiles: LayerPasses, pieces: Sequence[tuple[LayerRows, int, bool]]) -> None:
        for tile, mark, replay in pieces:
            self.out.tile(tile, layer)
            if mark in OF_LOSS:
                self.beside.at(mark, layer)
            elif mark == STASH_BORDER:
                self.stash.border(layer)
            elif mark:
                self.hooks.experts(layer, mark, tiles.inner_grads(mark), replay=replay)
