"""Units that are gathered for use: PyTorch FSDP2's hand-over of buffers, hook by hook.

[Note: FSDP2 hand-over]
torch 2.13 `distributed/fsdp/_fully_shard/_fsdp_param_group.py` and `_fsdp_collectives.py`.
Forward: a unit's all-gather output is kept until the *next* unit's copy-out is done (`comm_ctx.all_gather_state`), the
outermost unit's post-forward drops the last one. Backward: the output goes right after copy-out, and the unit that ran
before in forward order is gathered at once. Post-backward: parameters go first, then the previous reduce-scatter's
input, then the new input is made, gradients are copied in and die (the last one only when the function returns), then
the output is made. Units whose inputs need no gradient do this at the very end, outermost first.
Parameters cut on a dimension other than 0 are copied out through a second buffer and their gradients are re-laid by a
`torch.cat` before the copy-in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simcore.flows.unit import UnitBytes, Weigher
from simcore.framework import Unit, UnshardFlow
from simcore.plan import Plan
from simcore.program import Builder, Stream, Tables
from simcore.tape import Kernel

__all__ = ["UnshardHooks"]

FORWARD_GATHER, BACKWARD_GATHER, REDUCE, REPLICATE_REDUCE = range(4)


@dataclass(frozen=True, slots=True)
class _HookRows:
    """Rows of the tables that one unit's hooks use."""

    marks: dict[str, int]
    slots: dict[str, int]
    gather: int
    regather: int
    reduce: int
    replicate: int


def _is_int(value: bool | int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_FORWARD_HOOKS = ("pre_forward_begin", "pre_forward_end", "post_forward_begin", "post_forward_end")
_BACKWARD_HOOKS = ("pre_backward_begin", "pre_backward_end", "post_backward_begin", "post_backward_end")
_BUFFERS = ("all_gather_cast_input", "all_gather_output", "unsharded_param", "post_forward_shard",
            "reduce_scatter_input", "reduce_scatter_output", "sharded_grad")


def _hook_rows(unit: Unit, tables: Tables) -> _HookRows:
    inner = "experts." if unit.inner else ""
    slots = {name: tables.slot(f"{inner}{name}", name) for name in _BUFFERS}
    slots["all_gather_relayout"] = tables.slot(f"{inner}all_gather_relayout", "unsharded_param")
    slots["reduce_scatter_relayout"] = tables.slot(f"{inner}reduce_scatter_relayout", "unsharded_grad")
    slots["accumulated_grad"] = tables.slot(f"{inner}accumulated_grad", "unsharded_grad")
    marks = {hook: tables.label(f"fwd:{hook}:{unit.name}") for hook in _FORWARD_HOOKS}
    marks |= {f"recompute:{hook}": tables.label(f"recompute:{hook}:{unit.name}") for hook in _FORWARD_HOOKS}
    marks |= {hook: tables.label(f"bwd:{hook}:{unit.name}") for hook in _BACKWARD_HOOKS}
    for flag in (0, 1):
        text = f"bwd:post_backward_begin:{unit.name}:grads={flag}"
        marks[f"post_backward_begin:grads={flag}"] = tables.label(text)
    part = f"{unit.shard_axis}/{unit.reshard_after_forward}" if _is_int(unit.reshard_after_forward) else unit.shard_axis
    dtype = unit.gather_dtype
    return _HookRows(marks, slots, tables.comm("all_gather", unit.shard_axis, dtype),
                     tables.comm("all_gather", part, dtype),
                     tables.comm("reduce_scatter", unit.shard_axis, unit.reduce_dtype),
                     tables.comm("all_reduce", unit.replicate_axis or unit.shard_axis, unit.reduce_dtype))


@dataclass(slots=True)
class _State:
    unsharded: bool = False
    kept_shard: bool = False
    pending: int = 0
    positions: list[int] = field(default_factory=list)
    grads: list[tuple[int, int]] = field(default_factory=list)
    accumulated: bool = False
    has_sharded_grad: bool = False
    replicate_buffer: bool = False
    post_backward_done: bool = False


class UnshardHooks:
    """FSDP2's hooks, writing rows. One object runs through one step of one rank class."""

    def __init__(self, plan: Plan, units: Sequence[Unit], flow: UnshardFlow, tables: Tables, builder: Builder) -> None:
        self.plan, self.units, self.flow, self.out = plan, units, flow, builder
        weigh = Weigher(plan)
        self.bytes: list[UnitBytes]
        self.bytes = [weigh(unit) for unit in units]
        self.rows = [_hook_rows(unit, tables) for unit in units]
        self.states = [_State() for _ in units]
        self.held: int | None = None
        self.held_bytes = 0
        self.forward_root: int | None = None
        self.order: list[int] = []
        self.reducing: list[int] = []
        self.reduce_grads = True
        self.is_last_backward = True
        self.replay = False

    # ---- forward ------------------------------------------------------------------------------------------------
    def pre_forward(self, u: int) -> None:
        """The unit is gathered and copied out."""
        if self.forward_root is None:
            self.forward_root = u
        if not self.units[u].members:
            return
        self._mark(u, "pre_forward_begin")
        self._unshard(u, backward=False)
        self._wait(u, forward=True)
        self._mark(u, "pre_forward_end")
        for target in self._explicit(u, +1):
            self._unshard(target, backward=False)

    def post_forward(self, u: int) -> None:
        """The unit is resharded, or not; the outermost unit drops the last gathered buffer."""
        if self.units[u].members:
            self._mark(u, "post_forward_begin")
            if not self.replay:
                self._reshard_after_forward(u)
                self.states[u].positions.append(len(self.order))
                self.order.append(u)
            self._mark(u, "post_forward_end")
        if self.forward_root == u:
            self.forward_root = None
            self._drop_held()

    # ---- backward -----------------------------------------------------------------------------------------------
    def pre_backward(self, u: int) -> None:
        """The unit is gathered again if it was freed; the next one in reverse order is gathered ahead."""
        if not self.units[u].members:
            return
        self._mark(u, "pre_backward_begin")
        self._unshard(u, backward=True)
        self._wait(u, forward=False)
        explicit = self._explicit(u, -1)
        position = self.states[u].positions.pop() if self.states[u].positions else 0
        if not explicit and position > 0:
            self._unshard(self.order[position - 1], backward=True)
        self._mark(u, "pre_backward_end")
        for target in explicit:
            self._unshard(target, backward=True)

    def add_grads(self, u: int, grads: Sequence[tuple[int, int, int]]) -> None:
        """Unsharded gradients (layer, slot, bytes) that exist now and belong to the unit."""
        self.states[u].grads.extend((layer << 20 | slot, num_bytes) for layer, slot, num_bytes in grads)

    def post_backward(self, u: int) -> None:
        """Reshard, then reduce the unit's gradients (or keep them, unsharded, for a later microbatch)."""
        state = self.states[u]
        state.post_backward_done = True
        if not self.units[u].members:
            return
        self._mark(u, "post_backward_begin:grads=1" if state.grads else "post_backward_begin:grads=0")
        if state.accumulated and state.grads:
            self._free_grads(u, len(state.grads))
        if not self.reduce_grads:
            if self.flow.reshard_after_backward:
                self._free_unsharded(u)
            self._keep_accumulated(u)
        else:
            self._free_unsharded(u)
            while self.reducing:
                self._drop_reduce_input(self.reducing.pop(0))
            if state.grads or state.accumulated:
                self._reduce(u)
        self._mark(u, "post_backward_end")

    def end_backward(self) -> None:
        """The root's final callback: units that had no hook, waits, and the buffers that were kept."""
        self.forward_root = None
        for u in self._outermost_first():
            if not self.states[u].post_backward_done:
                self.post_backward(u)
            self.states[u].post_backward_done = False
        if not self.is_last_backward:
            return
        for u in self._outermost_first():
            self._drop_replicate_buffer(u)
            self._drop_pending(u)
            self.states[u].positions.clear()
        self.order.clear()
        while self.reducing:
            self._drop_reduce_input(self.reducing.pop(0))

    def zero_grad(self) -> None:
        """`zero_grad(set_to_none=True)`: sharded gradients die."""
        for u in self._outermost_first():
            if self.states[u].has_sharded_grad:
                self.out.free(self.units[u].first, self.rows[u].slots["sharded_grad"], self.bytes[u].sharded_grad)
                self.states[u].has_sharded_grad = False

    # ---- pieces -------------------------------------------------------------------------------------------------
    def _unshard(self, u: int, *, backward: bool) -> None:
        state, weight, rows = self.states[u], self.bytes[u], self.rows[u]
        if state.pending or state.unsharded or weight.world == 1:
            return
        layer = self.units[u].first
        size = weight.regathered if state.kept_shard else weight.gathered
        cast = 0 if state.kept_shard else weight.cast
        self.out.alloc(layer, rows.slots["all_gather_cast_input"], cast)
        self.out.alloc(layer, rows.slots["all_gather_output"], size)
        comm = rows.regather if state.kept_shard else rows.gather
        self.out.collective(layer, comm, size, Stream.ALL_GATHER, BACKWARD_GATHER if backward else FORWARD_GATHER)
        self.out.free(layer, rows.slots["all_gather_cast_input"], cast)
        state.pending = size

    def _wait(self, u: int, *, forward: bool) -> None:
        state, weight, rows, layer = self.states[u], self.bytes[u], self.rows[u], self.units[u].first
        if state.unsharded or (weight.world > 1 and not state.pending):
            return
        if weight.world > 1:
            self.out.wait(layer, FORWARD_GATHER)
            self.out.wait(layer, BACKWARD_GATHER)
        for p in weight.params:
            self.out.alloc(layer, rows.slots["unsharded_param"], p.used)
            self.out.alloc(layer, rows.slots["all_gather_relayout"], p.extra_copy)
        self.out.compute(Kernel.COPY, 0, 2 * weight.used)
        self.out.free(layer, rows.slots["all_gather_relayout"], sum(p.extra_copy for p in weight.params))
        if state.kept_shard:
            self.out.free(layer, rows.slots["post_forward_shard"], sum(p.kept_shard for p in weight.params))
        if forward:
            self._drop_held()
            if state.pending:
                self.held, self.held_bytes = u, state.pending
        else:
            self.out.free(layer, rows.slots["all_gather_output"], state.pending)
        state.pending, state.unsharded, state.kept_shard = 0, True, False

    def _reshard_after_forward(self, u: int) -> None:
        policy = self.units[u].reshard_after_forward
        if policy is False:
            return
        if not _is_int(policy):
            self._free_unsharded(u)
            return
        state, layer, slots = self.states[u], self.units[u].first, self.rows[u].slots
        for p in self.bytes[u].params:
            self.out.alloc(layer, slots["post_forward_shard"], p.kept_shard)
            self.out.free(layer, slots["unsharded_param"], p.used)
        state.unsharded, state.kept_shard = False, True

    def _free_unsharded(self, u: int) -> None:
        state = self.states[u]
        if state.unsharded:
            self.out.free(self.units[u].first, self.rows[u].slots["unsharded_param"], self.bytes[u].used)
            state.unsharded = False

    def _reduce(self, u: int) -> None:
        state, weight, rows, layer = self.states[u], self.bytes[u], self.rows[u], self.units[u].first
        self._drop_replicate_buffer(u)
        self._relay_grads(u)
        self.out.alloc(layer, rows.slots["reduce_scatter_input"], weight.reduce_input)
        self.out.compute(Kernel.COPY, 0, 2 * weight.reduce_input)
        last = self._free_all_but_last_grad(u)
        direct = weight.reduce_is_grad and not state.has_sharded_grad
        output = "sharded_grad" if direct else "reduce_scatter_output"
        self.out.alloc(layer, rows.slots[output], weight.reduce_output)
        if weight.world > 1:
            self.out.collective(layer, rows.reduce, weight.reduce_input, Stream.REDUCE, REDUCE)
        if self.units[u].replicate_axis:
            self.out.collective(layer, rows.replicate, weight.reduce_output, Stream.ALL_REDUCE, REPLICATE_REDUCE)
        self._store_grad(u, direct)
        for key, num_bytes in last:
            self.out.free(key >> 20, key & 0xFFFFF, num_bytes)
        state.accumulated = False
        self.reducing.append(u)

    def _store_grad(self, u: int, direct: bool) -> None:
        """The reduced gradient becomes (a cast of) the sharded one, or is added to what is there."""
        state, weight, rows, layer = self.states[u], self.bytes[u], self.rows[u], self.units[u].first
        if direct:
            state.has_sharded_grad = True
            return
        if not weight.reduce_is_grad:
            self.out.alloc(layer, rows.slots["sharded_grad"], weight.sharded_grad)
        if state.has_sharded_grad and not weight.reduce_is_grad:
            self.out.free(layer, rows.slots["sharded_grad"], weight.sharded_grad)
        state.has_sharded_grad = True
        if self.units[u].replicate_axis:
            state.replicate_buffer = True
        else:
            self.out.free(layer, rows.slots["reduce_scatter_output"], weight.reduce_output)

    def _relay_grads(self, u: int) -> None:
        """[Note: FSDP2 hand-over] gradients cut sideways are concatenated before the copy-in."""
        sideways = [p for p in self.bytes[u].params if p.extra_copy and p.grad]
        state, layer, slot = self.states[u], self.units[u].first, self.rows[u].slots["reduce_scatter_relayout"]
        if not sideways or self.bytes[u].world == 1:
            return
        for place, (key, num_bytes) in enumerate(state.grads):
            self.out.alloc(layer, slot, num_bytes)
            self.out.free(key >> 20, key & 0xFFFFF, num_bytes)
            state.grads[place] = (layer << 20 | slot, num_bytes)

    def _free_all_but_last_grad(self, u: int) -> list[tuple[int, int]]:
        state = self.states[u]
        if state.accumulated:
            grads = [(self._accumulated_key(u), p.accumulated) for p in self.bytes[u].params if p.accumulated]
        else:
            grads = state.grads
        for key, num_bytes in grads[:-1]:
            self.out.free(key >> 20, key & 0xFFFFF, num_bytes)
        last = list(grads[-1:])
        state.grads.clear()
        return last

    def _free_grads(self, u: int, count: int) -> None:
        state = self.states[u]
        for key, num_bytes in state.grads[:count]:
            self.out.free(key >> 20, key & 0xFFFFF, num_bytes)
        del state.grads[:count]

    def _accumulated_key(self, u: int) -> int:
        return self.units[u].first << 20 | self.rows[u].slots["accumulated_grad"]

    def _keep_accumulated(self, u: int) -> None:
        """Unsynchronised: gradients stay whole, in the reduce dtype; later ones were added in place."""
        state = self.states[u]
        if not state.grads:
            return
        key = self._accumulated_key(u)
        kept = [p for p in self.bytes[u].params if p.accumulated]
        for p, (grad, num_bytes) in zip(kept, state.grads, strict=True):
            if p.accumulated == num_bytes:
                self.out.free(grad >> 20, grad & 0xFFFFF, num_bytes)
                self.out.alloc(key >> 20, key & 0xFFFFF, p.accumulated)
            else:
                self.out.alloc(key >> 20, key & 0xFFFFF, p.accumulated)
                self.out.free(grad >> 20, grad & 0xFFFFF, num_bytes)
        state.grads.clear()
        state.accumulated = True

    def _drop_held(self) -> None:
        if self.held is not None:
            slots = self.rows[self.held].slots
            self.out.free(self.units[self.held].first, slots["all_gather_output"], self.held_bytes)
        self.held = None

    def _drop_pending(self, u: int) -> None:
        state = self.states[u]
        self.out.free(self.units[u].first, self.rows[u].slots["all_gather_output"], state.pending)
        state.pending = 0

    def _drop_reduce_input(self, u: int) -> None:
        self.out.wait(self.units[u].first, REDUCE)
        self.out.free(self.units[u].first, self.rows[u].slots["reduce_scatter_input"], self.bytes[u].reduce_input)

    def _drop_replicate_buffer(self, u: int) -> None:
        if self.states[u].replicate_buffer:
            self.out.wait(self.units[u].first, REPLICATE_REDUCE)
            self.out.free(self.units[u].first, self.rows[u].slots["reduce_scatter_output"], self.bytes[u].reduce_output)
            self.states[u].replicate_buffer = False

    def _explicit(self, u: int, direction: int) -> list[int]:
        """Targets of explicit prefetch: the next layers' own units (not the root's, not the experts')."""
        if not self.flow.prefetch or self.units[u].is_root or self.units[u].inner or self.replay:
            return []
        layers = [i for i, unit in enumerate(self.units) if not unit.inner and not unit.is_root and unit.explicit]
        if u not in layers:
            return []
        at = layers.index(u)
        span = range(1, self.flow.prefetch + 1)
        return [layers[at + direction * n] for n in span if 0 <= at + direction * n < len(layers)]

    def _outermost_first(self) -> list[int]:
        return sorted(range(len(self.units)), key=lambda u: (not self.units[u].is_root, self.units[u].first,
                                                             self.units[u].inner))

    def _mark(self, u: int, hook: str) -> None:
        prefix = "recompute:" if self.replay and "forward" in hook else ""
        self.out.mark(self.rows[u].marks[prefix + hook])
