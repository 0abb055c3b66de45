"""Gathering units for use: the parameter half of FSDP2's hand-over. See [Note: FSDP2 hand-over] in `hand_over.py`."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.fsdp2.unit_bytes import UnitBytes
from simcore.placement.framework import Unit
from simcore.program.builder import Builder
from simcore.program.outline import BACKWARD_GATHER, FORWARD_GATHER, Tables
from simcore.recording.host_operators import FSDP2_BACKWARD_GATHER, FSDP2_FORWARD_GATHER
from simcore.recording.tape import Kernel, Stream

__all__ = ["Gathers", "GathersState"]

GathersState = tuple[tuple[bool, ...], tuple[bool, ...], tuple[int, ...], int, int]
"""Fields of `Gathers` that change: of each unit `unsharded`, `kept`, `pending`; `held` and its bytes."""

_STREAM, _COPY = Stream.ALL_GATHER, Kernel.COPY  # looking an enum up is slow


class Gathers:
    """Writer of the memory events of all units' parameters, from shard to gathered and back.

    It remembers the state of each unit: sharded, gathered but not yet copied out, whole, or kept in a smaller group. A
    unit is given by its index `u` in `units`; `weights`: its buffer sizes.
    """

    def __init__(self, units: Sequence[Unit], weights: Sequence[UnitBytes], tables: Tables, builder: Builder) -> None:
        self.units, self.weights, self.out = units, weights, builder
        self.layers = [unit.first for unit in units]
        self.unsharded = [False] * len(units)
        self.kept = [False] * len(units)
        self.pending = [0] * len(units)
        self.held, self.held_bytes = -1, 0
        slots = (_Slots(tables, ""), _Slots(tables, "experts."))
        self.slots = [slots[unit.inner == "experts"] for unit in units]
        known: dict[tuple[str, str, str], tuple[int, int]] = {}
        self.comms = [_comms(unit, tables, known) for unit in units]
        copied = {count: (FSDP2_BACKWARD_GATHER.operators(count), FSDP2_FORWARD_GATHER.operators(count))
                  for count in {weight.num_params for weight in weights}}
        self.copied = [copied[weight.num_params] for weight in weights]
        self.from_host = [tables.comm("copy", "to_device", weight.host_dtype) if weight.offloaded else -1
                          for weight in weights]

    def unshard(self, u: int, *, backward: bool) -> None:
        """Simulates the all-gather of unit `u` (index in `units`); nothing if it is under way or the unit is whole.

        `backward`: it is issued in backward.
        """
        weight = self.weights[u]
        if self.pending[u] or self.unsharded[u] or weight.world == 1:
            return
        layer, slots, kept = self.layers[u], self.slots[u], self.kept[u]
        size, cast = weight.gathered, weight.cast_again if kept else weight.cast
        self.out.alloc(layer, slots.cast, cast)
        if not kept:
            self.out.alloc(layer, slots.staged, weight.staged)
            self.out.free(layer, slots.staged, weight.staged)
        self.out.alloc(layer, slots.gathered, size)
        handle = BACKWARD_GATHER if backward else FORWARD_GATHER
        if weight.offloaded and not kept:
            self.out.copy(layer, self.from_host[u], weight.from_host, _STREAM, handle)
        self.out.collective(layer, self.comms[u][kept], size, _STREAM, handle)
        self.out.free(layer, slots.cast, cast)
        self.pending[u] = size

    def wait(self, u: int, *, forward: bool) -> None:
        """Simulates the wait for the all-gather of unit `u` (index in `units`) and the copy-out of its parameters.

        Nothing if it is whole already or, on several ranks, no all-gather was issued. In forward the all-gather output
        is kept, and the one kept before it is freed; in backward it is freed at once.
        """
        weight, pending = self.weights[u], self.pending[u]
        if self.unsharded[u] or (weight.world > 1 and not pending):
            return
        layer, slots = self.layers[u], self.slots[u]
        if pending:
            self.out.wait(layer, FORWARD_GATHER)
            self.out.wait(layer, BACKWARD_GATHER)
        self.out.alloc(layer, slots.unsharded, weight.used)
        self.out.alloc(layer, slots.cast, weight.cast_alone)
        self.out.free(layer, slots.cast, weight.cast_alone)
        self.out.alloc(layer, slots.relayout, weight.extra_copy)
        self.out.compute(_COPY, 0, 2 * weight.used, self.copied[u][forward])
        self.out.free(layer, slots.relayout, weight.extra_copy)
        if self.kept[u]:
            self.out.free(layer, slots.kept, weight.kept_shard)
        if forward:
            self.drop_held()
            if pending:
                self.held, self.held_bytes = u, pending
        else:
            self.out.free(layer, slots.gathered, pending)
        self.pending[u], self.unsharded[u], self.kept[u] = 0, True, False

    def reshard(self, u: int) -> None:
        """Simulates the release of the whole parameters of unit `u` (index in `units`); nothing if it is not whole."""
        if self.unsharded[u]:
            self.out.free(self.layers[u], self.slots[u].unsharded, self.weights[u].used)
            self.unsharded[u] = False

    def reshard_after_forward(self, u: int) -> None:
        """Simulates the release of a unit's parameters after forward as `Unit.reshard_after_forward` says.

        `u`: index of the unit in `units`. That is all of them, none, or down to a smaller group's shard.
        """
        policy = self.units[u].reshard_after_forward
        if policy is True:
            self.reshard(u)
        elif policy is not False:
            for p in self.weights[u].params:
                self.out.alloc(self.layers[u], self.slots[u].kept, p.kept_shard)
                self.out.free(self.layers[u], self.slots[u].unsharded, p.used)
            self.unsharded[u], self.kept[u] = False, True

    def drop_held(self) -> None:
        """Simulates the release of the one all-gather output, of whatever unit, that forward kept, if there is one."""
        if self.held >= 0:
            self.out.free(self.layers[self.held], self.slots[self.held].gathered, self.held_bytes)
        self.held, self.held_bytes = -1, 0

    def drop_pending(self, u: int) -> None:
        """Simulates the release of the never used all-gather output of unit `u` (index in `units`), if there is one."""
        self.out.free(self.layers[u], self.slots[u].gathered, self.pending[u])
        self.pending[u] = 0

    def state(self) -> GathersState:
        """State of all units."""
        return tuple(self.unsharded), tuple(self.kept), tuple(self.pending), self.held, self.held_bytes

    def restore(self, state: GathersState) -> None:
        """Takes a state that `state` gave."""
        unsharded, kept, pending, self.held, self.held_bytes = state
        self.unsharded[:], self.kept[:], self.pending[:] = unsharded, kept, pending


class _Slots:
    """Owner rows of a unit's parameter buffers."""

    def __init__(self, tables: Tables, inner: str) -> None:
        self.cast = tables.slot(f"{inner}all_gather_cast_input", "all_gather_cast_input")
        self.staged = tables.slot(f"{inner}all_gather_copy_from_host", "all_gather_cast_input")
        self.gathered = tables.slot(f"{inner}all_gather_output", "all_gather_output")
        self.unsharded = tables.slot(f"{inner}unsharded_param", "unsharded_param")
        self.relayout = tables.slot(f"{inner}all_gather_relayout", "unsharded_param")
        self.kept = tables.slot(f"{inner}post_forward_shard", "post_forward_shard")


def _comms(unit: Unit, tables: Tables, known: dict[tuple[str, str, str], tuple[int, int]]) -> tuple[int, int]:
    """All-gathers of the sharded unit, and of one that is kept in a smaller group."""
    axis, smaller, dtype = key = (unit.shard_axis, unit.kept_axis, unit.gather_dtype)
    if key not in known:
        known[key] = tables.comm("all_gather", axis, dtype), tables.comm("all_gather", smaller, dtype)
    return known[key]
