"""Memory hooks of torch's FullyShardedDataParallel: [Note: FSDP1] in `strategy.py`."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.common.cpu_optimizer import updated
from simcore.frameworks.common.optimizer_memory import optimizer_temporaries, post_rest, rest_postings
from simcore.frameworks.fsdp1.adapter_units import AdapterUnits
from simcore.frameworks.fsdp1.flat_parameters import FlatUnit, flat_units, parts_of, ranks_updated, unit_padding
from simcore.frameworks.fsdp1.gradients import FlatGradients
from simcore.frameworks.fsdp1.strategy import Fsdp1Strategy
from simcore.pipeline.schedule import Action
from simcore.placement.layout import TensorLayout
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import UnrepeatedHooks
from simcore.program.outline import BACKWARD_GATHER, FORWARD_GATHER, Tables
from simcore.recording.rows import ADAPTER_BACKWARD_BEGIN, ADAPTER_FORWARD_BEGIN, ADAPTER_FORWARD_END
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
        kept = [flat.policy.at_rest.dtype for flat in self.flats]
        self.stored = [dtype_bytes(dtype) for dtype in kept]
        self.is_cast = [self.strategy.on_host or plan.framework.compute_dtype != dtype for dtype in kept]
        self.grads = FlatGradients(plan, tables, builder, self.flats)
        self.whole = [False] * len(self.units)
        self.unit_of = {layer: u for u, unit in enumerate(self.units) for layer, _ in unit.members if not unit.inner}
        self.adapters = AdapterUnits(plan, self.units)
        self.again = {unit.last: u for u, unit in enumerate(self.units) if u and unit.last != unit.first}
        self.order = sorted((u for u, unit in enumerate(self.units) if u and not unit.inner),
                            key=lambda u: self.units[u].first)
        self.gather = tables.comm("all_gather", self.strategy.axis, plan.framework.compute_dtype)
        self.from_host = [tables.comm("copy", "to_device", dtype) if self.strategy.on_host else -1 for dtype in kept]
        self.slots = {name: tables.slot(name, category) for name, category in (
            ("low_precision_shard", "all_gather_cast_input"), ("copy_from_host", "all_gather_cast_input"),
            ("flat_param", "unsharded_param"))}
        self.first_trained = next((layer for layer in plan.layers if plan.of_layer(layer).is_trained),
                                  len(plan.graph.layers))
        self.syncs, self.due, self.behind = True, list[int](), list[int]()
        self.asks_first = plan.framework.options.embeddings_require_grad
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps: the rank's shards, padding, states, buffers."""
        post_rest(self.plan, self.tables, self.out, rest_postings)
        if not self.strategy.on_host:
            (padding, trained), first = unit_padding(self.plan), self.plan.layers[0]
            self.out.alloc(first, self.tables.slot("flat_param.padding", "sharded_param"), padding)
            states = 0 if self.strategy.aligned else sum(dtype_bytes(layout.dtype) for layout in _states(self.flats))
            self.out.alloc(first, self.tables.slot("flat_param.padding.states", "opt_state"), states * trained)

    def begin_microbatch(self, action: Action) -> None:
        """Sets whether the microbatch of the pass `action` reduces gradients; nothing is simulated."""
        self.syncs = self.strategy.sync == "every" or action.is_last

    def forward_begin(self, layer: int) -> None:
        """Simulates the gathering of the unit of layer number `layer`; before the root's first layer also the root's.

        Layers are numbered over the whole model, embedding 0. With `forward_prefetch` (`Fsdp1Strategy.ahead`) the next
        unit is gathered as well.
        """
        self.adapters.enter()
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
        self.adapters.enter()
        if layer < self.first_trained:  # the layer's output has no gradient, so there is no hook on it
            if self.asks_first:
                self._free_behind()
            return
        if layer == self.units[0].last:
            self._pre_backward(0)
        if self._own(layer):
            self._pre_backward(self._own(layer))
        self._free_behind()

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
            if self.adapters.wraps and unit:
                self.behind = [unit]
            else:
                self._post_backward(unit)

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates the events of a unit inside layer number `layer` (whole model) at one of its four borders.

        Such a unit is one matrix of an adapter: [Note: PEFT's units]. `mark`: number of the border; `grads`: as in
        `backward_end`, of all adapters of the layer; `replay`: forward runs again for recomputation.
        """
        u = self.adapters.at(layer, mark)
        if mark == ADAPTER_FORWARD_BEGIN:
            self._unshard(u, BACKWARD_GATHER if replay else FORWARD_GATHER)
        elif mark == ADAPTER_FORWARD_END:
            self._free(u)
        elif mark == ADAPTER_BACKWARD_BEGIN:
            self._pre_backward(u)
        else:
            names = self.adapters.names(u)
            self.grads.add(u, [(layer, slot, size) for param, slot, size in grads if param.name in names])
            self._post_backward(u)

    def end_pass(self, action: Action) -> None:
        """Simulates, after a backward, the release of units still gathered, and the wait for reductions.

        The frees are torch's `_catch_all_reshard`; none in a microbatch that does not reduce under SHARD_GRAD_OP. After
        a forward it simulates nothing.
        """
        if action.forward:
            return
        self.behind = []
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
        optimizer_temporaries(self.plan, self.tables, self.out, ranks_updated(self.plan))
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
        layer = self.units[u].first
        if not self.whole[u]:
            self.whole[u] = True
            self._gather(layer, u, handle)
        if waits and self.parts > 1:
            self.out.wait(layer, handle)

    def _gather(self, layer: int, u: int, handle: int) -> None:
        """Gathers a unit; under NO_SHARD the low-precision copy is the parameter, if there is one."""
        low, staged = self.slots["low_precision_shard"], self.slots["copy_from_host"]
        shard, stored, is_cast = self.flats[u].shard, self.stored[u], self.is_cast[u]
        from_host = shard * stored * (self.strategy.on_host and stored != self.size)
        self.out.alloc(layer, staged, from_host)
        if self.parts == 1:
            self.out.alloc(layer, self.slots["flat_param"], shard * self.size * is_cast)
        else:
            self.out.alloc(layer, low, shard * self.size * is_cast)
        if is_cast:
            self.out.compute(Kernel.COPY, 0, shard * (self.size + stored))
        self.out.free(layer, staged, from_host)
        if self.parts > 1:
            gathered_bytes = shard * self.parts * self.size
            self.out.alloc(layer, self.slots["flat_param"], gathered_bytes)
            if self.strategy.on_host:  # in the stream that gathers, before it (`_runtime_utils.py`, _unshard)
                self.out.copy(layer, self.from_host[u], shard * stored, Stream.ALL_GATHER, handle)
            self.out.collective(layer, self.gather, gathered_bytes, Stream.ALL_GATHER, handle)
            self.out.free(layer, low, shard * self.size * is_cast)

    def _free(self, u: int) -> None:
        if self.whole[u]:
            self.whole[u] = False
            gathered_bytes = self.flats[u].shard * self.parts * self.size * (self.parts > 1 or self.is_cast[u])
            self.out.free(self.units[u].first, self.slots["flat_param"], gathered_bytes)

    def _free_behind(self) -> None:
        """Frees a frozen unit, once the gradient of its input is there.

        The same gradient is what the unit below waits for, whose hook comes first (torch 2.13 `_runtime_utils.py`,
        _register_post_backward_reshard_only_hook).
        """
        for u in self.behind:
            self._free(u)
        self.behind = []

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
        before = self.adapters.before(u) if self.adapters.wraps else self._neighbour(u, -1)
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


def _states(flats: Sequence[FlatUnit]) -> list[TensorLayout]:
    """Layouts of the optimizer's unquantized states, which include the padding of the flat parameter."""
    policy = next((flat.policy for flat in flats if flat.trains), flats[0].policy)
    return [layout for _, layout in policy.optimizer_states if not layout.blocks]
