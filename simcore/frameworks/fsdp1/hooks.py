"""Memory hooks of torch's FullyShardedDataParallel: [Note: FSDP1] in `strategy.py`."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.common.cpu_optimizer import updated
from simcore.frameworks.common.optimizer_memory import optimizer_temporaries, post_rest, rest_postings
from simcore.frameworks.fsdp1.flat_parameters import flat_policy, flat_units, parts_of, unit_padding
from simcore.frameworks.fsdp1.gradients import FlatGradients
from simcore.frameworks.fsdp1.strategy import Fsdp1Strategy
from simcore.pipeline.schedule import Action
from simcore.placement.layout import TensorLayout
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import UnrepeatedHooks
from simcore.program.outline import BACKWARD_GATHER, FORWARD_GATHER, Tables
from simcore.recording.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes

__all__ = ["Fsdp1Hooks"]


class Fsdp1Hooks(UnrepeatedHooks):
    """Writer of the memory events of one rank's step under FSDP1: allocations, frees, gathers, reductions.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`. The
    first unit is the root, with the parameters that belong to no layer's unit.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        self.plan, self.tables, self.out = plan, tables, builder
        self.strategy = plan.framework.strategy_as(Fsdp1Strategy)
        self.units, self.flats = plan.framework.units, flat_units(plan)
        self.parts, self.size = parts_of(plan), dtype_bytes(plan.framework.compute_dtype)
        stored = flat_policy(plan).at_rest.dtype
        self.stored = dtype_bytes(stored)
        self.is_cast = self.strategy.on_host or plan.framework.compute_dtype != stored
        self.grads = FlatGradients(plan, tables, builder, self.flats)
        self.whole = [False] * len(self.units)
        self.unit_of = {layer: u for u, unit in enumerate(self.units) for layer, _ in unit.members}
        self.again = {unit.last: u for u, unit in enumerate(self.units) if u and unit.last != unit.first}
        self.order = sorted(range(1, len(self.units)), key=lambda u: self.units[u].first)
        self.gather = tables.comm("all_gather", self.strategy.axis, plan.framework.compute_dtype)
        self.from_host = tables.comm("copy", "to_device", stored) if self.strategy.on_host else -1
        self.slots = {name: tables.slot(name, category) for name, category in (
            ("low_precision_shard", "all_gather_cast_input"), ("copy_from_host", "all_gather_cast_input"),
            ("flat_param", "unsharded_param"))}
        self.first_trained = next((layer for layer in plan.layers if plan.of_layer(layer).is_trained),
                                  len(plan.graph.layers))
        self.syncs, self.due = True, list[int]()
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps: the rank's shards, padding, states, buffers."""
        post_rest(self.plan, self.tables, self.out, rest_postings)
        if not self.strategy.on_host:
            padding, first = unit_padding(self.plan), self.plan.layers[0]
            self.out.alloc(first, self.tables.slot("flat_param.padding", "sharded_param"), self.stored * padding)
            states = 0 if self.strategy.aligned else sum(dtype_bytes(layout.dtype) for layout in _states(self.plan))
            self.out.alloc(first, self.tables.slot("flat_param.padding.states", "opt_state"), states * padding)

    def begin_microbatch(self, action: Action) -> None:
        """Sets whether the microbatch of the pass `action` reduces gradients; nothing is simulated."""
        self.syncs = self.strategy.sync == "every" or action.is_last

    def forward_begin(self, layer: int) -> None:
        """Simulates the gathering of the unit of layer number `layer`; before the root's first layer also the root's.

        Layers are numbered over the whole model, embedding 0. With `forward_prefetch` (`Fsdp1Strategy.ahead`) the next
        unit is gathered as well.
        """
        if layer == self.units[0].first:
            self._unshard(0, FORWARD_GATHER)
        u = self._own(layer)
        if u:
            self._unshard(u, FORWARD_GATHER)
        if self.strategy.ahead and layer not in self.again and (u or layer == self.units[0].first):
            self._unshard(self._neighbour(u, +1), FORWARD_GATHER, waits=False)

    def forward_end(self, layer: int) -> None:
        """Simulates the release of the gathered unit of layer number `layer`, unless the strategy is SHARD_GRAD_OP.

        Layers are numbered over the whole model, embedding 0. The root stays gathered. Under NO_SHARD it is the
        low-precision copy that is freed; the root's, too, after its last layer.
        """
        u = self._own(layer)
        if u and self.strategy.sharding_strategy != "SHARD_GRAD_OP":
            self._free(u)
        if layer == self.units[0].last and self.strategy.sharding_strategy == "NO_SHARD":
            self._free(0)

    def backward_begin(self, layer: int) -> None:
        """Simulates the gathering, before backward, of the unit of layer number `layer`.

        And of the root at its last layer. Layers are numbered over the whole model, embedding 0. With
        `Fsdp1Strategy.prefetch` "pre", the next unit of backward is gathered as well. Nothing for layers before the
        first trained one: their outputs have no gradient.
        """
        if layer < self.first_trained:  # the layer's output has no gradient, so there is no hook on it
            return
        if layer == self.units[0].last:
            self._pre_backward(0)
        if self._own(layer):
            self._pre_backward(self._own(layer))

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Takes the layer's new gradients, (parameter, slot: index of its owner in `Tables.slots`, bytes) each.

        `layer`: its number in the whole model, embedding 0. For each unit whose gradients are then complete it
        simulates their concatenation, the release of its parameters and the reduction.
        """
        u = self.unit_of.get(layer, 0)
        self.grads.add(u, [(layer, slot, num_bytes) for _, slot, num_bytes in grads])
        due = [u] if self._own(layer) and layer not in self.again else []
        if self.strategy.ahead:  # its views were made before the previous unit ran, so that unit's backward is first
            due, self.due = self.due, due
        if layer == self.units[0].first:
            due += [*self.due, 0]
            self.due = []
        for unit in due:
            self._post_backward(unit)

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates nothing: experts belong to their layer's unit, and no argument is used."""

    def end_pass(self, action: Action) -> None:
        """Simulates, after a backward, the release of units still gathered, and the wait for reductions.

        The frees are torch's `_catch_all_reshard`; none in a microbatch that does not reduce under SHARD_GRAD_OP. After
        a forward it simulates nothing.
        """
        if action.forward:
            return
        for u in range(len(self.units)):
            if self._is_freed():
                self._free(u)
        if self.syncs:
            self.grads.wait()

    def optimize(self) -> None:
        """Simulates the optimizer's step over the rank's shards, then the release of their gradients."""
        begin, end, step_end = self.marks
        self.out.mark(begin)
        updated(self.plan, self.out)
        optimizer_temporaries(self.plan, self.tables, self.out)
        self.out.mark(end)
        self.grads.drop()
        self.out.mark(step_end)

    # ---- units --------------------------------------------------------------------------------------------------
    def _own(self, layer: int) -> int:
        """Unit of the layer, or the unit whose weight it uses again; 0 for layers of the root.

        A tied head calls the embedding's unit, whose gradient is complete only after the embedding's backward
        (`_post_backward_hook` is AccumulateGrad's): it is unsharded for either, and stays from one to the other.
        """
        return self.unit_of.get(layer, self.again.get(layer, 0))

    def _neighbour(self, u: int, step: int) -> int:
        """Unit that runs next in forward (`step` 1) or before (-1); -1 for none. The root begins first and ends last.

        So the unit before the root is the last layer's, or the one that the head uses again.
        """
        if u == 0:
            last = [*self.order[-1:], *self.again.values()]
            return (self.order[0] if step > 0 else last[-1]) if self.order else -1
        at = self.order.index(u) + step
        return self.order[at] if 0 <= at < len(self.order) else -1

    def _unshard(self, u: int, handle: int, *, waits: bool = True) -> None:
        """Casts, gathers and waits; posts nothing if the unit is unsharded."""
        if u < 0 or not self.flats[u].places:
            return
        layer, flat = self.units[u].first, self.flats[u]
        if not self.whole[u]:
            self.whole[u] = True
            self._gather(layer, flat.shard, handle)
        if waits and self.parts > 1:
            self.out.wait(layer, handle)

    def _gather(self, layer: int, shard: int, handle: int) -> None:
        """Gathers a unit; under NO_SHARD the low-precision copy is the parameter, if there is one."""
        low, staged = self.slots["low_precision_shard"], self.slots["copy_from_host"]
        from_host = shard * self.stored * (self.strategy.on_host and self.stored != self.size)
        self.out.alloc(layer, staged, from_host)
        if self.parts == 1:
            self.out.alloc(layer, self.slots["flat_param"], shard * self.size * self.is_cast)
        else:
            self.out.alloc(layer, low, shard * self.size * self.is_cast)
        if self.is_cast:
            self.out.compute(Kernel.COPY, 0, shard * (self.size + self.stored))
        self.out.free(layer, staged, from_host)
        if self.parts > 1:
            gathered_bytes = shard * self.parts * self.size
            self.out.alloc(layer, self.slots["flat_param"], gathered_bytes)
            if self.strategy.on_host:  # in the stream that gathers, before it (`_runtime_utils.py`, _unshard)
                self.out.copy(layer, self.from_host, shard * self.stored, Stream.ALL_GATHER, handle)
            self.out.collective(layer, self.gather, gathered_bytes, Stream.ALL_GATHER, handle)
            self.out.free(layer, low, shard * self.size * self.is_cast)

    def _free(self, u: int) -> None:
        if self.whole[u]:
            self.whole[u] = False
            gathered_bytes = self.flats[u].shard * self.parts * self.size * (self.parts > 1 or self.is_cast)
            self.out.free(self.units[u].first, self.slots["flat_param"], gathered_bytes)

    def _is_freed(self) -> bool:
        """True if backward frees units.

        Without a reduction only those that forward frees (`_should_free_in_backward`).
        """
        return self.syncs or self.strategy.sharding_strategy != "SHARD_GRAD_OP"

    def _pre_backward(self, u: int) -> None:
        self._unshard(u, BACKWARD_GATHER)
        if self.strategy.prefetch == "pre":
            self._prefetch(u)

    def _prefetch(self, u: int) -> None:
        """Unshards the unit before it in forward, if any gradient flows back to it."""
        before = self._neighbour(u, -1)
        if before >= 0 and self.units[before].first >= self.first_trained:
            self._unshard(before, BACKWARD_GATHER, waits=False)

    def _post_backward(self, u: int) -> None:
        """Concatenates the unit's gradients, frees its parameters, reduces the gradient."""
        layer = self.units[u].first
        self.grads.lay_together(u, layer)
        if self._is_freed():
            self._free(u)
        if self.strategy.prefetch == "post" and u:
            self._prefetch(u)
        if self.syncs:
            self.grads.reduce(u, layer)


def _states(plan: Plan) -> list[TensorLayout]:
    """Layouts of the optimizer's unquantized states, which include the padding of the flat parameter."""
    return [layout for rule in plan.framework.rules for _, layout in rule.policy.optimizer_states if not layout.blocks]
