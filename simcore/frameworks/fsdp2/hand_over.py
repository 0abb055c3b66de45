"""Units that are gathered for use: PyTorch FSDP2's hooks, in the order in which they run.

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

from collections.abc import Collection, Sequence

from simcore.frameworks.fsdp2.all_gather import Gathers, GathersState
from simcore.frameworks.fsdp2.forward_order import ForwardOrder, named_ahead
from simcore.frameworks.fsdp2.reduce_scatter import Reductions, ReductionsState
from simcore.frameworks.fsdp2.strategy import Fsdp2Strategy
from simcore.frameworks.fsdp2.unit_bytes import UnitBytes
from simcore.placement.framework import Unit
from simcore.program.builder import Builder
from simcore.program.hooks import HookState
from simcore.program.outline import Tables
from simcore.recording.host_operators import FSDP2_RELEASE

__all__ = ["UnitsRead", "UnshardHooks"]

UnitsRead = tuple[GathersState, ReductionsState, tuple[int, ...], tuple[bool, ...], int, bool, bool]
"""Parts of the state of all units that passes read, in the order of `UnshardHooks.state`."""

_FORWARD_HOOKS = ("pre_forward_begin", "pre_forward_end", "post_forward_begin", "post_forward_end")
_BACKWARD_HOOKS = ("bwd:pre_backward_begin", "bwd:pre_backward_end", "bwd:post_backward_end")
_POST_BACKWARD = "bwd:post_backward_begin:{}:grads="


class UnshardHooks:
    """Writer of the memory events of FSDP2's hooks in one step: one method for each hook of `fully_shard`.

    A unit is given by its index `u` in `units`; `weights`: their sizes. One object serves one step of the simulated
    rank.
    """

    def __init__(self, units: Sequence[Unit], weights: Sequence[UnitBytes], strategy: Fsdp2Strategy, tables: Tables,
                 builder: Builder) -> None:
        self.units, self.strategy, self.out = units, strategy, builder
        self.gathers = Gathers(units, weights, tables, builder)
        self.reductions = Reductions(units, weights, tables, builder, divides=strategy.divides_alone)
        self.forward_hooks, self.replay_hooks = ([tables.hook(f"{part}:{name}:{{}}") for name in _FORWARD_HOOKS]
                                                 for part in ("fwd", "recompute"))
        self.backward_hooks = [tables.hook(f"{name}:{{}}") for name in _BACKWARD_HOOKS]
        self.post_backward_hooks = [tables.hook(f"{_POST_BACKWARD}{flag}") for flag in (0, 1)]
        counts = {weight.num_params for weight in weights}
        released = {count: FSDP2_RELEASE.operators(count) for count in counts}
        self.released = [released[weight.num_params] for weight in weights]
        self.first_name = len(tables.units)
        tables.units += [unit.name for unit in units]
        self.order = ForwardOrder(units)
        self.chains: dict[int, list[int]] = {}
        self.links: dict[int, int] = {}
        for u, unit in enumerate(units):
            if unit.explicit:  # of its root: chunks do not know others
                chain = self.chains.setdefault(self.order.roots[u], [])
                self.links[u] = len(chain)
                chain.append(u)
        self.named = named_ahead(units, self.order.roots) if strategy.gathers_experts_ahead else None
        self.done = [False] * len(units)
        self.outermost_first = sorted(range(len(units)), key=lambda u: (not units[u].is_root, units[u].first,
                                                                        units[u].inner != ""))
        self.forward_root = -1
        self.reduce_grads = True
        self.is_last_backward = True
        self.replay = False

    def pre_forward(self, u: int) -> None:
        """Simulates what unit `u` (index in `units`) does before its forward: all-gather, copy-out, explicit prefetch.

        Nothing is gathered if it is whole already.
        """
        if self.forward_root < 0:
            self.forward_root = u
        if not self.units[u].members:
            return
        begin, end, _, _ = self.replay_hooks if self.replay else self.forward_hooks
        self.out.mark(begin, self.first_name + u)
        self.gathers.unshard(u, backward=False)
        self.gathers.wait(u, forward=True)
        self.out.mark(end, self.first_name + u)
        for target in self._explicit(u, +1):
            self.gathers.unshard(target, backward=False)

    def post_forward(self, u: int) -> None:
        """Simulates what unit `u` (index in `units`) does after its forward: it frees parameters, if it reshards.

        The outermost unit also frees the last all-gather output.
        """
        if self.units[u].members:
            _, _, begin, end = self.replay_hooks if self.replay else self.forward_hooks
            self.out.mark(begin, self.first_name + u)
            if not self.replay:
                self.gathers.reshard_after_forward(u)
                self.order.ran(u)
            self.out.mark(end, self.first_name + u)
        if self.forward_root == u:
            self.forward_root = -1
            self.gathers.drop_held()

    def pre_backward(self, u: int) -> None:
        """Simulates what unit `u` (index in `units`) does before its backward: it is gathered again if it was freed.

        The unit that ran before it in forward is gathered ahead, or those of the explicit prefetch.
        """
        if not self.units[u].members:
            return
        begin, end, _ = self.backward_hooks
        self.out.mark(begin, self.first_name + u)
        self.gathers.unshard(u, backward=True)
        self.gathers.wait(u, forward=False)
        explicit = self._explicit(u, -1)
        previous = self.order.take(u)
        if not explicit and previous >= 0:
            self.gathers.unshard(previous, backward=True)
        self.out.mark(end, self.first_name + u)
        for target in explicit:
            self.gathers.unshard(target, backward=True)

    def post_backward(self, u: int) -> None:
        """Simulates what unit `u` (index in `units`) does after its backward: frees parameters, reduces gradients.

        In a microbatch that does not reduce, gradients are kept whole for a later one, and parameters too if the
        strategy does not reshard after backward.
        """
        self.done[u] = True
        if not self.units[u].members or self.units[u].rests:
            return
        self.out.mark(self.post_backward_hooks[self.reductions.has_grads(u)], self.first_name + u)
        self.out.python(self.released[u])
        self.reductions.add_in_place(u)
        if self.reduce_grads:
            self.gathers.reshard(u)
            self.reductions.wait_for_inputs()
            self.reductions.reduce(u)
        else:
            if self.strategy.reshard_after_backward:
                self.gathers.reshard(u)
            self.reductions.keep(u)
        self.out.mark(self.backward_hooks[-1], self.first_name + u)

    def end_backward(self, inside: Collection[int]) -> None:
        """Simulates the callback at the end of a backward, for the units with the indices `inside` in `units`.

        Units whose post-backward hook did not run do its work now; then come waits, and frees of buffers that were
        kept.
        """
        self.forward_root = -1
        mine = [u for u in self.outermost_first if u in inside]
        for u in mine:
            if not self.done[u]:
                self.post_backward(u)
            self.done[u] = False
        if self.is_last_backward:
            self._finish(mine)

    def reduce_all(self, inside: Collection[int]) -> None:
        """Simulates the reduction, at the step's end, of the units with the indices `inside` in `units`, one by one.

        torch 2.13 `distributed/pipelining/stage.py`, perform_reduce_grad: the states in the order of modules.
        """
        self.reduce_grads = True
        mine = [u for u in self.outermost_first if u in inside]
        for u in mine:
            self.post_backward(u)
            self.done[u] = False
        self._finish(mine)

    def _finish(self, units: Sequence[int]) -> None:
        for u in units:
            self.reductions.drop_replicate_buffer(u)
            self.gathers.drop_pending(u)
        self.order.clear(units)
        self.reductions.wait_for_inputs()

    def zero_grad(self) -> None:
        """Simulates the release of the sharded gradients of all units of the rank."""
        for u in self.outermost_first:
            self.reductions.zero_grad(u)

    def state(self) -> HookState[UnitsRead]:
        """State of all units between two passes over layers."""
        read = (self.gathers.state(), self.reductions.state(), self.order.tops(), tuple(self.done), self.forward_root,
                self.reduce_grads, self.is_last_backward)
        return HookState(read, self.order.depths())

    def follow(self, before: HookState[UnitsRead], after: HookState[UnitsRead]) -> None:
        """Takes the state after a pass that was written before, as `MemoryHooks.follow`."""
        gathers, reductions, tops, done, self.forward_root, self.reduce_grads, self.is_last_backward = after.read
        self.gathers.restore(gathers)
        if reductions != before.read[1]:  # a forward has none
            self.reductions.restore(reductions)
        self.order.follow([new - old for new, old in zip(after.depths, before.depths, strict=True)], tops)
        self.done[:] = done

    def _explicit(self, u: int, direction: int) -> list[int]:
        """Targets of explicit prefetch: the next layers' own units (not the root's, not the experts').

        Where units are named: [Note: torchtitan's prefetch].
        """
        if self.named is not None:
            return [] if self.replay else self.named[direction < 0].get(u, [])
        depth = self.strategy.prefetch if direction > 0 else self.strategy.prefetch_backward
        if not depth or self.replay or not self.units[u].explicit:
            return []
        chain, at = self.chains[self.order.roots[u]], self.links[u]
        return chain[at + 1:at + 1 + depth] if direction > 0 else chain[max(at - depth, 0):at][::-1]
