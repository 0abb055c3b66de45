"""Flat gradients of FSDP1's units: the gradients in [Note: FSDP1] in `strategy.py`."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.fsdp1.flat_parameters import FlatUnit, flat_policy, parts_of
from simcore.frameworks.fsdp1.strategy import Fsdp1Strategy
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.tape import Kernel, Stream
from simcore.units import dtype_bytes

__all__ = ["FlatGradients"]

REDUCE_HANDLE, TO_HOST = 16, 17


class FlatGradients:
    """Writer of the memory events of all units' gradients in one step under FSDP1.

    They go from single gradients to a flat one for a unit, and to a rank's shard of the reduced sum. A unit is given by
    its index `u` in `flats`.
    """

    def __init__(self, plan: Plan, tables: Tables, out: Builder, flats: Sequence[FlatUnit]) -> None:
        self.strategy = plan.framework.strategy_as(Fsdp1Strategy)
        self.flats, self.out, self.first = flats, out, plan.layers[0]
        self.parts = parts_of(plan)
        policy = next((flat.policy for flat in flats if flat.trains), flat_policy(plan))
        self.made, self.sent, self.stored = (dtype_bytes(dtype) for dtype in (
            plan.framework.compute_dtype, self.strategy.reduce_dtype, policy.grad.dtype))
        self.single: list[list[tuple[int, int, int]]] = [[] for _ in flats]
        self.flat = [False] * len(flats)
        self.reduced: dict[int, tuple[int, int]] = {}
        self.last_layer = self.first
        self.slots = {name: tables.slot(name, category) for name, category in (
            ("flat_grad", "unsharded_grad"), ("flat_grad_to_reduce", "reduce_scatter_input"),
            ("reduced_part", "reduce_scatter_output"), ("flat_grad_part", "sharded_grad"))}
        self.to_host = tables.comm("copy", "to_host", policy.grad.dtype) if self.strategy.on_host else -1
        scattered = "reduce_scatter" if self.parts > 1 else "all_reduce"
        axis = self.strategy.axis if self.parts > 1 else self.strategy.replicate_axis
        self.comm = tables.comm(scattered, axis, self.strategy.reduce_dtype) if axis else -1
        hybrid = self.parts > 1 and self.strategy.replicate_axis
        self.copies = tables.comm("all_reduce", self.strategy.replicate_axis,
                                  self.strategy.reduce_dtype) if hybrid else -1

    def add(self, u: int, grads: Sequence[tuple[int, int, int]]) -> None:
        """Keeps new gradients of unit `u` (index in `flats`), without simulating anything.

        Each is (layer number of the whole model, slot: index of its owner in `Tables.slots`, bytes).
        """
        self.single[u] += grads

    def lay_together(self, u: int, layer: int) -> None:
        """Simulates the concatenation of unit `u`'s gradients into one flat gradient, and their release.

        `u`: index of the unit in `flats`; `layer`: layer number under which memory is listed. If earlier microbatches
        left a flat gradient, the new one is added to it. Backward of `torch.split`.
        """
        if not self.single[u]:
            return
        num_bytes = self.flats[u].numel * self.made
        self.out.alloc(layer, self.slots["flat_grad"], num_bytes)
        self.out.compute(Kernel.COPY, 0, 2 * num_bytes)
        for at, slot, size in self.single[u]:
            self.out.free(at, slot, size)
        self.single[u] = []
        if self.flat[u]:
            self.out.compute(Kernel.ELEMENTWISE, self.flats[u].numel, 3 * num_bytes)
            self.out.free(layer, self.slots["flat_grad"], num_bytes)
        self.flat[u] = True

    def reduce(self, u: int, layer: int) -> None:
        """Simulates the reduction of unit `u`'s flat gradient (cast, padding, collective), and its release.

        `u`: index of the unit in `flats`; `layer`: layer number under which memory is listed. The rank's shard of the
        result is cast and accumulated. Nothing if the unit has no gradient.
        """
        if not self.flat[u]:
            return
        self.flat[u], self.last_layer = False, layer
        (self._scatter if self.parts > 1 else self._sum)(u, layer)
        self.out.free(layer, self.slots["flat_grad"], self.flats[u].numel * self.made)

    def _scatter(self, u: int, layer: int) -> None:
        flat, to_reduce = self.flats[u], self.slots["flat_grad_to_reduce"]
        padded = flat.shard * self.parts
        copies = (flat.numel * self.sent * (self.sent != self.made), padded * self.sent * (padded != flat.numel))
        for num_bytes in copies:
            self.out.alloc(layer, to_reduce, num_bytes)
        self.out.compute(Kernel.COPY, 0, 2 * sum(copies))
        part = self.slots["flat_grad_part" if self.sent == self.stored else "reduced_part"]
        self.out.alloc(layer, part, flat.shard * self.sent)
        self.out.collective(layer, self.comm, padded * self.sent, Stream.REDUCE, REDUCE_HANDLE)
        if self.copies >= 0:
            self.out.collective(layer, self.copies, flat.shard * self.sent, Stream.ALL_REDUCE, REDUCE_HANDLE)
        self._cast_part(layer, part, flat.shard)
        if self.strategy.on_host:
            stream = Stream.ALL_REDUCE if self.copies >= 0 else Stream.REDUCE
            self.out.copy(self.first, self.to_host, flat.shard * self.stored, stream, TO_HOST)
        self._keep(u, layer, flat.shard * self.stored)
        for num_bytes in copies:
            self.out.free(layer, to_reduce, num_bytes)

    def _sum(self, u: int, layer: int) -> None:
        """Reduces in place under NO_SHARD, without shards."""
        numel = self.flats[u].numel
        part = self.slots["flat_grad_part" if self.sent == self.stored else "flat_grad_to_reduce"]
        self.out.alloc(layer, part, numel * self.sent)
        self.out.compute(Kernel.COPY, 0, 2 * numel * self.sent)
        if self.comm >= 0:
            self.out.collective(layer, self.comm, numel * self.sent, Stream.REDUCE, REDUCE_HANDLE)
        self._cast_part(layer, part, numel)
        self._keep(u, layer, numel * self.stored)

    def _cast_part(self, layer: int, part: int, numel: int) -> None:
        """Casts to the dtype in which parameters rest (`_cast_grad_to_param_dtype`)."""
        if self.sent != self.stored:
            self.out.alloc(layer, self.slots["flat_grad_part"], numel * self.stored)
            self.out.compute(Kernel.COPY, 0, numel * (self.sent + self.stored))
            self.out.free(layer, part, numel * self.sent)

    def _keep(self, u: int, layer: int, num_bytes: int) -> None:
        """Keeps the shard until zero_grad or its copy to the host, or adds it to the kept one."""
        if u in self.reduced:
            self.out.free(layer, self.slots["flat_grad_part"], num_bytes)
        self.reduced[u] = (layer, num_bytes)

    def wait(self) -> None:
        """Simulates the wait for all reductions at the end of backward.

        Shards that were copied to the host are freed on the device.
        """
        if self.comm >= 0:
            self.out.wait(self.last_layer, REDUCE_HANDLE)
        if self.strategy.on_host:
            self.out.wait(self.first, TO_HOST)
            self.drop()

    def drop(self) -> None:
        """Simulates the release of the reduced gradients of all units, as `zero_grad` does."""
        for layer, num_bytes in self.reduced.values():
            self.out.free(layer, self.slots["flat_grad_part"], num_bytes)
        self.reduced.clear()
