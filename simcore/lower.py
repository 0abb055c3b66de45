"""Lowering: the program of one rank class.

Comes in: a plan (how this class holds every tensor) and the workload. Goes out: `Program`. The walk is the same for all
frameworks: microbatches in the order of the pipeline schedule, layers in the order of the graph; at each border the
framework's flow (`flows/*.py`) writes what it brings, drops and reduces. Layers are recorded once per kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simcore.flow import Flow, FlowMaker
from simcore.plan import Plan
from simcore.program import Builder, Phase, Program, Stream, Tables
from simcore.schedule import Action
from simcore.tape import GRAD_HIDDEN, HIDDEN, Param
from simcore.tile import Tile
from simcore.tiles import LayerTiles, Workload, record_layers
from simcore.units import dtype_bytes

__all__ = ["lower"]


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


def _own_copy(tables: Tables) -> Tables:
    mine = Tables()
    mine.slots, mine.comms = dict(tables.slots), dict(tables.comms)
    return mine


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
