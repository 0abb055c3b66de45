"""Reducing units' gradients: the gradient half of FSDP2's hand-over. See [Note: FSDP2 hand-over] in `hand_over.py`."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.fsdp2.unit_bytes import GradBytes, UnitBytes
from simcore.placement.framework import Unit
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.host_operators import FSDP2_REDUCE
from simcore.recording.rows import Step
from simcore.recording.tape import Kernel, Stream

__all__ = ["Reductions", "ReductionsState"]

REDUCE, REPLICATE_REDUCE, TO_HOST = 2, 3, 4
_SCATTER, _REPLICATE, _COPY = Stream.REDUCE, Stream.ALL_REDUCE, Kernel.COPY  # looking an enum up is slow
Grad = tuple[int, int, int]
"""(layer, slot, bytes) of an unsharded gradient."""
Places = tuple[int, ...]
"""Indices of some of a unit's parameters, in its order."""
ReductionsState = tuple[tuple[tuple[tuple[int, Grad], ...], ...], tuple[Places, ...], tuple[bool, ...],
                        tuple[GradBytes | None, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Fields of `Reductions` that change, in the order of `Reductions.state`."""


class Reductions:
    """Writer of the memory events of all units' gradients, from autograd's to the reduced shards.

    It remembers the gradients of each unit. A unit is given by its index `u` in `units`; `weights`: its buffer sizes.
    `divides`: `Fsdp2Strategy.divides_alone`.
    """

    def __init__(self, units: Sequence[Unit], weights: Sequence[UnitBytes], tables: Tables, builder: Builder, *,
                 divides: str) -> None:
        self.units, self.weights, self.out = units, weights, builder
        self.divides = [divides == "all" or divides == unit.inner != "" for unit in units]
        self.layers = [unit.first for unit in units]
        self.grads: list[dict[int, Grad]] = [{} for _ in units]
        self.accumulated: list[Places] = [() for _ in units]
        self.in_place = [False] * len(units)
        self.sums: dict[tuple[int, Places], tuple[GradBytes, tuple[Step, ...]]] = {}
        self.stored: list[GradBytes | None] = [None] * len(units)
        self.replicate_buffer = [0] * len(units)
        self.input_bytes = [0] * len(units)
        self.inputs: list[int] = []
        slots = (_Slots(tables, ""), _Slots(tables, "experts."))
        self.slots = [slots[unit.inner == "experts"] for unit in units]
        self.to_host = [tables.comm("copy", "to_host", weight.host_dtype) if weight.offloaded else -1
                        for weight in weights]
        self.step_slot = tables.slot("sqrt_exp_avg_sq", "optim_temp")
        kinds = {(unit.shard_axis, unit.replicate_axis, unit.reduce_dtype) for unit in units}
        known = {key: _comms(tables, *key) for key in sorted(kinds)}
        self.comms = [known[unit.shard_axis, unit.replicate_axis, unit.reduce_dtype] for unit in units]

    def add(self, u: int, place: int, grad: Grad) -> None:
        """Takes a new gradient of a parameter of unit `u` (index in `units`).

        `place`: the parameter's index in the unit. `grad`: (layer number of the whole model, slot: index of its owner
        in `Tables.slots`, bytes). If a new one is waiting already, this one is added to it and freed. torch 2.13
        `distributed/pipelining/_backward.py`, stage_backward_weight: `weight.grad += dw`.
        """
        if place in self.grads[u]:
            self.out.free(*grad)
            return
        self.grads[u][place] = grad

    def has_grads(self, u: int) -> bool:
        """True if a parameter of unit `u` (index in `units`) has an unsharded gradient of the parameter itself.

        Either a new one, or one of earlier microbatches to which autograd adds; not a copy in another dtype.
        """
        return bool(self.grads[u] or (self.accumulated[u] and self.in_place[u]))

    def add_in_place(self, u: int) -> None:
        """Simulates the release of a unit's new gradients, which are added to those of earlier microbatches.

        `u`: index of the unit in `units`. Nothing if there are no earlier ones: see [Note: gradients that wait].
        """
        if self.accumulated[u]:
            for grad in self.grads[u].values():
                self.out.free(*grad)
            self.grads[u] = {}

    def keep(self, u: int) -> None:
        """Simulates a microbatch without reduction: gradients of unit `u` (index in `units`) stay, in the reduce dtype.

        [Note: gradients that wait] Those that have it already stay their parameters' own: autograd adds to them, one by
        one, as `record_layers.adds_in_place` says, and few come here. Others wait in a copy, to which whole sets of new
        ones are added (torch 2.13 `_fsdp_param.py`, accumulate_unsharded_grad_if_needed).
        """
        if not self.grads[u]:
            return
        layer, slot = self.layers[u], self.slots[u].accumulated
        params = self.weights[u].params
        for place, grad in self.grads[u].items():
            size = params[place].accumulated
            self.in_place[u] = size == grad[2]
            if self.in_place[u]:  # the very same storage under another name
                self.out.free(*grad)
                self.out.alloc(layer, slot, size)
            else:
                self.out.alloc(layer, slot, size)
                self.out.free(*grad)
        self.accumulated[u] = tuple(self.grads[u])
        self.grads[u] = {}

    def wait_for_inputs(self) -> None:
        """Simulates the wait for all units' reduce-scatters under way, and the release of their input buffers."""
        for u in self.inputs:
            self.out.wait(self.layers[u], REDUCE)
            self.out.free(self.layers[u], self.slots[u].input, self.input_bytes[u])
        self.inputs.clear()

    def reduce(self, u: int) -> None:
        """Simulates the reduction of the gradients of unit `u` (index in `units`), and their release.

        Nothing when it has none. Optimizer steps that run inside backward follow it.
        """
        if not (self.grads[u] or self.accumulated[u]):
            return
        weight, steps = self._weighed(u, self.accumulated[u] or tuple(self.grads[u]))
        slots, layer = self.slots[u], self.layers[u]
        self.drop_replicate_buffer(u)
        grads = self._take(u)
        self.out.alloc(layer, slots.input, weight.input)
        self.out.compute(_COPY, 0, 2 * weight.input, FSDP2_REDUCE.operators(weight.num_params))
        # torch 2.13 `_fsdp_collectives.py`, foreach_reduce: the variable of a loop over gradients holds the last one.
        last = grads[-1:] if self.weights[u].world > 1 else []
        for grad in grads[:-1] if last else grads:
            self.out.free(*grad)
        lent = weight.is_grad and bool(steps) and bool(self.units[u].replicate_axis)
        direct = weight.is_grad and self.stored[u] is None and not (self.weights[u].offloaded or lent)
        self.out.alloc(layer, slots.sharded if direct else slots.output, weight.output)
        scatter, replicate = self.comms[u]
        if self.weights[u].world > 1:
            self.out.collective(layer, scatter, weight.input, _SCATTER, REDUCE)
        elif self.divides[u]:  # torch 2.13 foreach_reduce: reduce_output.copy_(reduce_scatter_input / divide_factor)
            self.out.alloc(layer, slots.relayout, weight.input)
            self.out.free(layer, slots.relayout, weight.input)
        if self.units[u].replicate_axis:
            self.out.collective(layer, replicate, weight.output, _REPLICATE, REPLICATE_REDUCE)
        self._store(u, weight, direct=direct)
        if lent:  # the gradient dies when it is used, its storage with the all-reduce's buffer
            self.stored[u] = None
        self._update(u, steps)
        for grad in last:
            self.out.free(*grad)
        self.accumulated[u] = ()
        self.input_bytes[u] = weight.input
        self.inputs.append(u)

    def drop_replicate_buffer(self, u: int) -> None:
        """Simulates a wait and the release of the all-reduced buffer that HSDP kept of unit `u`, if there is one.

        `u`: index of the unit in `units`.
        """
        if self.replicate_buffer[u]:
            self.out.wait(self.layers[u], REPLICATE_REDUCE)
            self.out.free(self.layers[u], self.slots[u].output, self.replicate_buffer[u])
            self.replicate_buffer[u] = 0

    def wait_for_host(self) -> None:
        """Simulates the wait for the gradients of all units that are copied to the host; nothing without offload.

        torch 2.13 `_fsdp_param_group.py`, finalize_backward: grad_offload_event.
        """
        for u, weight in enumerate(self.weights):
            if weight.offloaded:
                self.out.wait(self.layers[u], TO_HOST)

    def zero_grad(self, u: int) -> None:
        """Simulates the release of the sharded gradients of unit `u` (index in `units`), if it has any.

        As torch's `zero_grad(set_to_none=True)`.
        """
        stored = self.stored[u]
        if stored is not None:
            self.out.free(self.layers[u], self.slots[u].sharded, stored.stored)
            self.stored[u] = None

    def state(self) -> ReductionsState:
        """State of all units' gradients and of the reductions under way."""
        return (tuple(tuple(grads.items()) for grads in self.grads), tuple(self.accumulated), tuple(self.in_place),
                tuple(self.stored), tuple(self.replicate_buffer), tuple(self.input_bytes), tuple(self.inputs))

    def restore(self, state: ReductionsState) -> None:
        """Takes a state that `state` gave."""
        grads, accumulated, in_place, stored, replicate_buffer, input_bytes, inputs = state
        self.grads[:], self.accumulated[:], self.in_place[:] = map(dict, grads), accumulated, in_place
        self.stored[:], self.replicate_buffer[:] = stored, replicate_buffer
        self.input_bytes[:], self.inputs[:] = input_bytes, inputs

    def _store(self, u: int, weight: GradBytes, *, direct: bool) -> None:
        """The reduced gradient becomes the sharded one, or a cast of it does, or it is added to what is there.

        One that rests on the host is copied there, and its storage goes (torch 2.13 `_fsdp_collectives.py`).
        """
        slots, layer = self.slots[u], self.layers[u]
        if not direct:
            if not weight.is_grad:
                self.out.alloc(layer, slots.sharded, weight.stored)
                if self.stored[u]:
                    self.out.free(layer, slots.sharded, weight.stored)
            if self.units[u].replicate_axis:
                self.replicate_buffer[u] = weight.output
            else:
                self.out.free(layer, slots.output, weight.output)
        if self.weights[u].offloaded:
            self.out.copy(layer, self.to_host[u], weight.stored,
                          _REPLICATE if self.units[u].replicate_axis else _SCATTER, TO_HOST)
            self.out.free(layer, slots.sharded, 0 if weight.is_grad else weight.stored)
        else:
            self.stored[u] = weight

    def _update(self, u: int, steps: tuple[Step, ...]) -> None:
        """The optimizer's steps where they run in backward; the gradients die."""
        for step in steps:
            self.out.alloc(self.layers[u], self.step_slot, step.held)
            self.out.compute(Kernel.OPTIMIZER, step.flops, step.moved)
            self.out.free(self.layers[u], self.step_slot, step.held)
        if steps:
            self.zero_grad(u)

    def _take(self, u: int) -> list[Grad]:
        """The unit's gradients, new or accumulated; those of sideways cuts are concatenated into new ones.

        In the order of the unit's parameters (torch 2.13 `_fsdp_param_group.py`, post_backward), not of their births.
        """
        layer, slots, grads = self.layers[u], self.slots[u], [grad for _, grad in sorted(self.grads[u].items())]
        if self.accumulated[u]:
            params = self.weights[u].params
            grads = [(layer, slots.accumulated, params[place].accumulated) for place in self.accumulated[u]]
        self.grads[u] = {}
        if self.weights[u].extra_copy:
            for grad in grads:
                self.out.alloc(layer, slots.relayout, grad[2])
                self.out.free(*grad)
            grads = [(layer, slots.relayout, grad[2]) for grad in grads]
        return grads

    def _weighed(self, u: int, places: Places) -> tuple[GradBytes, tuple[Step, ...]]:
        """Sizes of reducing these gradients, and the optimizer's steps that follow; units that are alike share them."""
        weight = self.weights[u]
        if (id(weight), places) not in self.sums:
            self.sums[id(weight), places] = weight.grads(places), weight.steps(places)
        return self.sums[id(weight), places]


class _Slots:
    """Owner rows of a unit's gradient buffers."""

    def __init__(self, tables: Tables, inner: str) -> None:
        self.input = tables.slot(f"{inner}reduce_scatter_input", "reduce_scatter_input")
        self.output = tables.slot(f"{inner}reduce_scatter_output", "reduce_scatter_output")
        self.sharded = tables.slot(f"{inner}sharded_grad", "sharded_grad")
        self.relayout = tables.slot(f"{inner}reduce_scatter_relayout", "unsharded_grad")
        self.accumulated = tables.slot(f"{inner}accumulated_grad", "unsharded_grad")


def _comms(tables: Tables, shard_axis: str, replicate_axis: str, dtype: str) -> tuple[int, int]:
    return (tables.comm("reduce_scatter", shard_axis, dtype),
            tables.comm("all_reduce", replicate_axis or shard_axis, dtype))
