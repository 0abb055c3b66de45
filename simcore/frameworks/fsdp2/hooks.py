"""Hooks of frameworks that gather units for use: the work at each border of the layers."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.common.cpu_optimizer import updated
from simcore.frameworks.common.optimizer_memory import post_rest, rest_postings, update
from simcore.frameworks.fsdp2.hand_over import UnitsRead, UnshardHooks
from simcore.frameworks.fsdp2.pairs.reference import number_of
from simcore.frameworks.fsdp2.sizes import Fsdp2Sizes, fsdp2_sizes
from simcore.frameworks.fsdp2.strategy import Fsdp2Strategy
from simcore.pipeline.schedule import Action, Part
from simcore.placement.framework import inner_of
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import HookState, PassHooks, SizedHooks
from simcore.program.outline import Phase, Tables
from simcore.program.record_layers import differentiates_tower
from simcore.recording.inner_units import FP32_MODULES, marks_of
from simcore.recording.rows import (
    INNER_BACKWARD_BEGIN,
    INNER_BACKWARD_END,
    INNER_FORWARD_BEGIN,
    INNER_FORWARD_END,
    Module,
)
from simcore.recording.tape import Kernel, Param, Stream

__all__ = ["FSDP2_HOOKS", "Fsdp2Hooks"]

_Read = tuple[UnitsRead, Part, tuple[tuple[tuple[int, int], int], ...]]
"""State of the units, part of the pass, and gradients of no unit: bytes by layer and slot."""
_OF_EXPERTS = (INNER_FORWARD_BEGIN, INNER_FORWARD_END, INNER_BACKWARD_BEGIN, INNER_BACKWARD_END)
_INSIDE: dict[str, tuple[int, ...]] = {"experts": _OF_EXPERTS, **{
    inner_of(name): marks_of(name) for name in FP32_MODULES}}
_BORDERS = {mark: (inner, border) for inner, marks in _INSIDE.items() for border, mark in enumerate(marks)}
"""Unit inside a layer, and which of its borders, by mark."""
FORWARD_BEGIN, FORWARD_END, BACKWARD_BEGIN, BACKWARD_END = range(4)


class Fsdp2Hooks:
    """Writer of the memory events of one rank's step under FSDP2: allocations, frees, gathers, reductions.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`, for
    all units that begin or end there.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder, sizes: Fsdp2Sizes) -> None:
        self.plan, self.tables, self.out, self.sizes = plan, tables, builder, sizes
        self.strategy = plan.framework.strategy_as(Fsdp2Strategy)
        inside = set(plan.layers)
        units = [u for u in plan.framework.units if u.first in inside]
        self.units = units
        self.hooks = UnshardHooks(units, sizes.weights, self.strategy, tables, builder)
        self.second = number_of(units)
        outer = [u for u in range(len(units)) if not units[u].inner and not units[u].rests and u != self.second]
        self.starting: dict[int, list[int]] = {layer: [] for layer in plan.layers}
        self.ending: dict[int, list[int]] = {layer: [] for layer in plan.layers}
        for u in outer:
            self.starting[units[u].first].append(u)
            self.ending[units[u].last].insert(0, u)
        self.inner: dict[tuple[int, str], int] = {
            (unit.first, unit.inner): u for u, unit in enumerate(units) if unit.inner}
        self.routes: dict[tuple[int, int, int], list[tuple[int, int, int, int]]] = {}
        self.unit_at = self._units_of_layers()
        carries = plan.framework.options.embeddings_require_grad
        trained = (layer for layer in range(len(plan.graph.layers)) if carries or self._trains(layer))
        self.first_trained = next(trained, len(plan.graph.layers))
        tower = range(1, 1 + plan.graph.num_tower_parts)
        self.dead = frozenset(tower) if not differentiates_tower(plan) else frozenset()
        self.opt_marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]
        self.free_grads: dict[tuple[int, int], int] = {}
        self.part: Part = "whole"

    def _units_of_layers(self) -> dict[int, list[tuple[int, int, tuple[int, ...]]]]:
        """Layer -> (unit, parameters of the unit before this layer's, tensor numbers that it wraps)."""
        found: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {layer: [] for layer in self.plan.layers}
        for u, unit in enumerate(self.units):
            before = 0
            for layer, numbers in unit.members:
                found[layer].append((u, before, numbers))
                before += len(numbers)
        return found

    def _trains(self, layer: int) -> bool:
        return self.plan.of_layer(layer).is_trained

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps: parameters at rest, buffers, optimizer states."""
        _post_rest(self.plan, self.tables, self.out)

    def begin_microbatch(self, action: Action) -> None:
        """Sets, if the pass `action` is a backward, whether units then reduce gradients; simulates nothing itself.

        And whether the buffers and waits of reductions end with this pass. A forward changes neither.
        """
        self.part = action.part
        if not action.forward:
            at_end = self.strategy.sync == "end"
            self.hooks.reduce_grads = self.strategy.sync == "every" or (action.is_last and not at_end)
            every = self.strategy.reshard_after_backward and self.strategy.finish == "every"
            self.hooks.is_last_backward = every or (action.is_last and not at_end)

    def forward_begin(self, layer: int) -> None:
        """Simulates the gathering of the units, except experts units, that begin at layer number `layer`.

        Layers are numbered over the whole model, from 0, the embedding.
        """
        for u in self.starting[layer]:
            self.hooks.pre_forward(u)

    def forward_end(self, layer: int) -> None:
        """Simulates the resharding, if they reshard after forward, of the units that end at layer number `layer`.

        Layers are numbered over the whole model, from 0, the embedding. Experts units are left to `experts`.
        """
        for u in self.ending[layer]:
            self.hooks.post_forward(u)

    def backward_begin(self, layer: int) -> None:
        """Simulates the gathering, for backward, of the units, except experts units, that end at layer number `layer`.

        Layers are numbered over the whole model, from 0, the embedding. Nothing for layers before the first trained
        one: their outputs have no gradient.
        """
        if layer < self.first_trained or layer in self.dead:  # its output carries no gradient: no hook on it
            return
        for u in self.ending[layer]:
            self.hooks.pre_backward(u)

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Takes the layer's new gradients, and simulates the post-backward of units whose backward ends here.

        They free their parameters and reduce their gradients, or keep either, as `Fsdp2Strategy` says. `layer`: its
        number in the whole model, 0 the embedding. `grads`: (parameter, slot: index of its owner in `Tables.slots`,
        bytes) each.
        """
        if self.part != "input":
            self._sort_grads(layer, grads)
        for u in reversed(self.starting[layer]) if self.part != "weight" else ():
            if self.units[u].first > self.first_trained and layer not in self.dead:  # its inputs carry a gradient
                self.hooks.post_backward(u)

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates the events of a unit inside the layer (experts, a module in fp32) at one of its four borders.

        `layer`: its number in the whole model, 0 the embedding. `mark`: of `recording.rows`, INNER_FORWARD_BEGIN to
        INNER_BACKWARD_END, or of `recording.inner_units`. `replay`: forward runs again for recomputation.
        `grads`: as in `backward_end`, used at the last border only.
        """
        inner, border = _BORDERS[mark]
        u, phase = self.inner[layer, inner], self.out.phase
        self.out.at(Phase.RECOMPUTE if replay else phase)  # what its hooks do in a replay is part of it
        self.hooks.replay = replay
        if border == FORWARD_BEGIN:
            self.hooks.pre_forward(u)
        elif border == FORWARD_END:
            self.hooks.post_forward(u)
        elif border == BACKWARD_BEGIN:
            self.hooks.pre_backward(u)
        else:
            self._sort_grads(layer, grads, mark)
            self.hooks.post_backward(u)
        self.hooks.replay = False
        self.out.at(phase)

    def end_pass(self, action: Action) -> None:
        """Simulates, after a backward `action`, the reductions, waits and frees left for the units of its chunk.

        Nothing after a forward.
        """
        if action.forward:
            return
        chunk = set(self.plan.chunks[action.chunk])
        inside = {u for u, unit in enumerate(self.units) if unit.first in chunk and u != self.second}
        if action.part != "weight":
            self.hooks.end_backward(inside)
        if action.is_last and self.strategy.sync == "end":
            self.hooks.reduce_all(inside)

    def optimize(self) -> None:
        """Simulates the optimizer's step of this rank, then the release of all gradients."""
        begin, end, step_end = self.opt_marks
        self.out.mark(begin)
        if self.strategy.counts_over and self.sizes.counts:
            self._count_tokens(self.strategy.counts_over)
        self.hooks.reductions.wait_for_host()
        updated(self.plan, self.out)
        update(self.sizes.optimizer, self.plan.layers[0], self.tables, self.out)
        self.out.mark(end)
        self.hooks.zero_grad()
        for (layer, slot), num_bytes in self.free_grads.items():
            self.out.free(layer, slot, num_bytes)
        self.out.mark(step_end)

    def _count_tokens(self, axis: str) -> None:
        """Sums up the tokens of each expert, in one tensor of all layers, and corrects the routers' biases by them.

        torchtitan 0.2.2 `components/optimizer.py`, _update_expert_bias, a hook before the step.
        """
        layer, size, slot = self.plan.layers[0], self.sizes.counts, self.tables.slot("tokens_by_layer", "optim_temp")
        self.out.alloc(layer, slot, size)
        if self.plan.mesh.axis(axis).size > 1:
            self.out.collective(layer, self.tables.comm("all_reduce", axis, "fp32"), size, Stream.COMPUTE,
                                int(Module.NONE))
        self.out.compute(Kernel.ELEMENTWISE, 0, 2 * size, 10)
        self.out.free(layer, slot, size)

    def of_reference(self) -> PassHooks:
        """Hooks of the reference's pass: of its one unit, or these, where it is the policy without its adapters."""
        return self if self.second < 0 else OneUnit(self.hooks, self.second)

    def state(self) -> HookState[_Read]:
        """State of all units, and the gradients that rest until zero_grad."""
        units = self.hooks.state()
        return HookState((units.read, self.part, tuple(self.free_grads.items())), units.depths)

    def follow(self, before: HookState[_Read], after: HookState[_Read]) -> None:
        """Takes the state after a pass that was written before, as `MemoryHooks.follow`."""
        read, self.part, free_grads = after.read
        self.hooks.follow(HookState(before.read[0], before.depths), HookState(read, after.depths))
        self.free_grads = dict(free_grads)

    def _sort_grads(self, layer: int, grads: Sequence[tuple[Param, int, int]], mark: int = 0) -> None:
        """Gradients of units go to their units; those of plain local parameters rest until zero_grad."""
        key = (self.plan.graph.layers[layer].kind, mark, len(grads))  # fewer where some are added in place
        if key not in self.routes:
            self.routes[key] = self._route(layer, grads)
        units = self.unit_at[layer]
        for which, place, slot, num_bytes in self.routes[key]:
            if which >= 0:
                u, before, _ = units[which]
                self.hooks.reductions.add(u, before + place, (layer, slot, num_bytes))
            elif (layer, slot) in self.free_grads:
                self.out.free(layer, slot, num_bytes)
            else:
                self.free_grads[layer, slot] = num_bytes

    def _route(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> list[tuple[int, int, int, int]]:
        """In parameter order: (which of the layer's units or -1, its parameter there, slot, bytes)."""
        numbers = {p.spec.name: i for i, p in enumerate(self.plan.of_layer(layer))}
        units = self.unit_at[layer]
        out = []
        for param, slot, num_bytes in sorted(grads, key=lambda g: numbers[g[0].name]):
            number = numbers[param.name]
            which = next((i for i, (_, _, inside) in enumerate(units) if number in inside), -1)
            out.append((which, units[which][2].index(number) if which >= 0 else 0, slot, num_bytes))
        return out


class OneUnit:
    """Hooks of the pass of a model that is one unit, the unit with the index `u` of `hooks`."""

    def __init__(self, hooks: UnshardHooks, u: int) -> None:
        self._hooks, self._u, self._unit = hooks, u, hooks.units[u]

    def forward_begin(self, layer: int) -> None:
        """Simulates the gathering of the model ahead of its first layer."""
        if layer == self._unit.first:
            self._hooks.pre_forward(self._u)

    def forward_end(self, layer: int) -> None:
        """Simulates the release of the model behind its last layer."""
        if layer == self._unit.last:
            self._hooks.post_forward(self._u)


def _post_rest(plan: Plan, tables: Tables, builder: Builder) -> None:
    post_rest(plan, tables, builder, rest_postings)


FSDP2_HOOKS = SizedHooks(fsdp2_sizes, _post_rest, Fsdp2Hooks)
"""Factory of `Fsdp2Hooks`."""
