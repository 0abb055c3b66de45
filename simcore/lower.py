"""Lowering: the program of one rank class.

Comes in: a plan (how this class holds every tensor) and the workload. Goes out: `Program`. The walk is the same for all
frameworks: microbatches in the order of the pipeline schedule, layers in the order of the graph; at each border the
framework's flow (`flows/*.py`) writes what it brings, drops and reduces. Layers are recorded once per kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from simcore.flow import Flow, FlowMaker
from simcore.outline import Builder, Outline, Phase, Tables
from simcore.plan import Plan
from simcore.program import Program
from simcore.schedule import Action
from simcore.tape import Param
from simcore.tile import Tile
from simcore.tiles import Edges, Recording, Workload, keys_of, record_layers

__all__ = ["lower"]


def lower(plan: Plan, workload: Workload, actions: Iterable[Action], flow_of: FlowMaker) -> Program:
    """The program of the plan's rank for the given order of passes."""
    recording = record_layers(plan, workload)
    outline, places = _outline(plan, recording, tuple(actions), flow_of)
    tiles = (own if place < 0 else recording.tiles[place] for own, place in zip(outline.tiles, places, strict=True))
    return Program(outline, tuple(tiles))


@lru_cache(maxsize=64)
def _outline(plan: Plan, recording: Recording, actions: tuple[Action, ...], flow_of: FlowMaker) -> tuple[
        Outline, tuple[int, ...]]:
    """The outline, and for each of its tiles the number in `recording.tiles`, or -1 for a tile of the flow.

    The walk and the flow look at the plan, at the order of passes and at the recording's shape, which are the key; what
    a layer takes is inside its tiles alone.
    """
    tables = _own_copy(recording.tables)
    builder = Builder(tables)
    flow = flow_of(plan, tables, builder)
    walk = _Walk(plan, builder, flow, recording)
    flow.rest()
    builder.tile(recording.standing, plan.layers[0])
    walk.received.rest()
    for action in actions:
        walk.forward(action) if action.forward else walk.backward(action)
    walk.finish()
    builder.at(Phase.OPTIMIZER)
    flow.optimize()
    outline = builder.build([layer.path for layer in plan.graph.layers])
    numbers = {id(tile): number for number, tile in enumerate(recording.tiles)}
    return outline, tuple(numbers.get(id(tile), -1) for tile in outline.tiles)


def _own_copy(tables: Tables) -> Tables:
    mine = Tables()
    mine.slots, mine.comms = dict(tables.slots), dict(tables.comms)
    return mine


class _Received:
    """What a stage holds of the microbatches that are over, besides its layers' own references.

    Megatron's schedule (core 0.16.1 `pipeline_parallel/schedules.py`) keeps the last output until forward returns the
    next: its graph, though used up, ends in the input that was received. It keeps that input's gradient, which is sent
    back, until the next is there. Between steps the last input, with its `.grad`, is the block's attribute
    (`transformer/transformer_block.py`, input_tensor). Others drop a gradient when it is sent.
    """

    def __init__(self, plan: Plan, builder: Builder, edges: Edges) -> None:
        self.out, self.edges, self.first = builder, edges, plan.layers[0]
        self.keeps = plan.framework.keeps_received and plan.stage > 0
        self.deferred = plan.framework.deferred_heads if plan.stage == plan.mesh.pp - 1 else 0
        self.waiting = 0
        self.has_input = self.has_grad = False
        self.newest = -1

    def rest(self) -> None:
        """Those of the step before."""
        if self.keeps:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.out.tile(self.edges.keep_grad, self.first)
            self.has_input = self.has_grad = True

    def begin_forward(self) -> None:
        """An input is there: the first of a step replaces the last step's, with its gradient."""
        if self.newest < 0 and self.has_grad:
            self.out.tile(self.edges.drop_grad, self.first)
            self.has_grad = False
            self._drop_input()

    def end_forward(self, microbatch: int) -> None:
        """The next output is there. Where a head's input waits, so does the graph that it ends."""
        if self.has_input and 0 <= self.newest < self.deferred:
            self.has_input, self.waiting = False, self.waiting + 1
        self._drop_input()
        self.newest = microbatch

    def _drop_input(self) -> None:
        if self.has_input:
            self.out.tile(self.edges.drop_hidden, self.first - 1)
        self.has_input = False

    def grad(self, microbatch: int) -> None:
        """The next gradient is there and sent; layers have let go of the input."""
        waits = 0 < microbatch <= self.deferred
        if (self.has_grad and not waits) or not self.keeps:
            self.out.tile(self.edges.drop_grad, self.first)
        self.has_grad = self.keeps
        if self.keeps and microbatch == self.newest:
            self.out.tile(self.edges.keep_hidden, self.first - 1)
            self.has_input = True


    def finish(self) -> None:
        """Heads get their weight gradients, and let go."""
        for _ in range(self.waiting):
            self.out.tile(self.edges.drop_hidden, self.first - 1)
            self.out.tile(self.edges.drop_grad, self.first)


# ---- the walk -------------------------------------------------------------------------------------------------------
class _Walk:
    """Passes over the layers of one stage."""

    def __init__(self, plan: Plan, builder: Builder, flow: Flow, recording: Recording) -> None:
        self.plan, self.out, self.flow, self.edges = plan, builder, flow, recording.edges
        self.tiles = {layer: recording.kinds[key] for layer, key in keys_of(plan).items()}
        self.tables = builder.tables
        self.begin = {True: self.tables.hook("fwd:begin"), False: self.tables.hook("bwd:begin")}
        self.end = {True: self.tables.hook("fwd:end"), False: self.tables.hook("bwd:end")}
        self.first, self.last = plan.layers[0], plan.layers[-1]
        self.is_first, self.is_last = plan.stage == 0, plan.stage == plan.mesh.pp - 1
        self.norm = next((layer for layer in plan.layers if self._kind(layer) == "final_norm"), -1)
        self.head = next((layer for layer in plan.layers if self._kind(layer) == "head"), -1)
        self.received = _Received(plan, builder, recording.edges)
        self.waiting = 0

    def _kind(self, layer: int) -> str:
        return self.plan.graph.kinds[self.plan.graph.layers[layer].kind].name

    def forward(self, action: Action) -> None:
        out, flow = self.out, self.flow
        out.at(Phase.FORWARD, action.microbatch)
        out.tile(self.edges.tokens, self.first)
        out.mark(self.begin[True])
        flow.begin_microbatch(action)
        out.tile(self.edges.mask, self.first)
        if not self.is_first:
            out.tile(self.edges.receive_hidden, self.first - 1)
            self.received.begin_forward()
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
            out.tile(self.edges.send_hidden, self.last)
            if self.plan.framework.frees_sent_output:
                out.tile(self.edges.drop_hidden, self.last)
        self.received.end_forward(action.microbatch)
        out.tile(self.edges.drop_mask, self.first)
        flow.end_pass(action)
        out.mark(self.end[True])

    def backward(self, action: Action) -> None:
        out, flow = self.out, self.flow
        out.at(Phase.BACKWARD, action.microbatch)
        out.mark(self.begin[False])
        flow.begin_microbatch(action)
        if not self.is_last:
            out.tile(self.edges.receive_grad, self.last + 1)
        for layer in reversed(self.plan.layers):
            out.tile(self.tiles[layer].seed, layer)
            flow.backward_begin(layer)
            self._pass(layer, self.tiles[layer].backward)
            flow.backward_end(layer, self._outer_grads(layer))
            if layer == self.head and action.microbatch < self.plan.framework.deferred_heads:
                out.tile(self.edges.defer, layer)
                self.waiting += 1
        if not self.is_first:
            out.tile(self.edges.send_grad, self.first)
            self.received.grad(action.microbatch)
        flow.end_pass(action)
        if self.is_last:
            out.tile(self.tiles[self.last].late, self.last)
        elif not self.plan.framework.frees_sent_output:
            out.tile(self.edges.drop_hidden, self.last)
        out.tile(self.edges.drop_tokens, self.first)
        out.mark(self.end[False])

    def finish(self) -> None:
        """What has waited for the end of the step (core 0.16.1 `schedules.py`, finish_embedding_wgrad_compute)."""
        for _ in range(self.waiting):
            self.out.tile(self.edges.drop_deferred, self.head)
        self.received.finish()

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
