"""Memory hooks of DDP: unsharded parameters, gradients made by autograd, see [Note: the reducer]."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.common.optimizer_memory import optimizer_temporaries, post_rest, rest_postings
from simcore.frameworks.ddp.strategy import DdpStrategy
from simcore.pipeline.schedule import Action
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import UnrepeatedHooks
from simcore.program.outline import Tables
from simcore.recording.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes

__all__ = ["DdpHooks"]

HANDLE = 16


class DdpHooks(UnrepeatedHooks):
    """Writer of the memory events of one rank's step under DDP: gradients, buckets and their all-reduce.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`.
    Buckets are filled in the order in which gradients are ready.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        self.plan, self.tables, self.out = plan, tables, builder
        self.strategy = plan.framework.strategy_as(DdpStrategy)
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]
        self.grads: dict[tuple[int, int], int] = {}
        self.filled: dict[str, int] = {}
        self.caps: dict[str, int] = {}
        self.last_layer = plan.layers[0]
        self.is_last = False

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps: parameters, optimizer states, buckets.

        Buckets are as large as all gradients together; there are none in a job of one process.
        """
        post_rest(self.plan, self.tables, self.out, rest_postings)
        if self.strategy.axis:
            self.out.alloc(self.plan.layers[0], self.tables.slot("buckets", "main_grad"), self._bucket_bytes())

    def _bucket_bytes(self) -> int:
        """Bytes of all buckets: one element for each of every gradient."""
        return sum(count * sum(p.local * dtype_bytes(p.policy.grad.dtype) for p in self.plan.kinds[kind] if p.trainable)
                   for kind, count in self.plan.kind_counts)

    def begin_microbatch(self, action: Action) -> None:
        """Sets whether the pass `action` is of the last microbatch of the step; nothing is simulated."""
        self.is_last = action.is_last

    def forward_begin(self, layer: int) -> None:
        """Simulates nothing: parameters are never sharded."""

    def forward_end(self, layer: int) -> None:
        """Simulates nothing: there is nothing to free."""

    def backward_begin(self, layer: int) -> None:
        """Simulates nothing: there is nothing to gather."""

    def backward_end(self, layer: int, grads: Sequence[tuple[Param, int, int]]) -> None:
        """Takes the new gradients of layer number `layer`, and adds them to existing ones; the added ones are freed.

        Layers are numbered over the whole model, embedding 0. `grads`: (parameter, slot: index of its owner in
        `Tables.slots`, bytes) each. In the last microbatch it simulates their copy into buckets, and the all-reduce of
        buckets that are full; in every microbatch, gradients that are views of buckets (`DdpStrategy.is_view`) are
        freed at once.
        """
        for param, slot, num_bytes in grads:
            if (layer, slot) in self.grads or (self.strategy.axis and self.strategy.is_view):
                self.out.free(layer, slot, num_bytes)
            else:
                self.grads[layer, slot] = num_bytes
            copies = self._copies(layer, param.name) if self.is_last and self.strategy.axis else 0
            for _ in range(copies):
                self._fill(layer, param.dtype, num_bytes // copies)

    def _copies(self, layer: int, name: str) -> int:
        """Number of parameters that an entry stands for: one, or one for each expert."""
        return next(placed.used_copies for placed in self.plan.of_layer(layer) if placed.spec.name == name)

    def _fill(self, layer: int, dtype: str, num_bytes: int) -> None:
        """Copies a gradient into the bucket of its dtype, which is reduced as soon as it has reached its cap."""
        self.out.compute(Kernel.COPY, 0, 2 * num_bytes)
        self.filled[dtype] = self.filled.get(dtype, 0) + num_bytes
        if self.filled[dtype] >= self.caps.setdefault(dtype, self.strategy.first_bytes):
            self._reduce(layer, dtype)

    def _reduce(self, layer: int, dtype: str) -> None:
        comm = self.tables.comm("all_reduce", self.strategy.axis, dtype)
        self.out.collective(layer, comm, self.filled[dtype], Stream.REDUCE, HANDLE)
        self.filled[dtype], self.caps[dtype], self.last_layer = 0, self.strategy.bucket_bytes, layer

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates nothing: experts are no separate unit here, and no argument is used."""

    def end_pass(self, action: Action) -> None:
        """Simulates, after the step's last backward, the all-reduce of the last buckets.

        Then every gradient is copied back from its bucket, unless it is a view of it.
        """
        if action.forward or not self.is_last or not self.strategy.axis:
            return
        first = self.plan.layers[0]
        for dtype in [dtype for dtype, num_bytes in self.filled.items() if num_bytes]:
            self._reduce(first, dtype)
        self.out.wait(self.last_layer, HANDLE)
        if not self.strategy.is_view:
            self.out.compute(Kernel.COPY, 0, 2 * sum(self.grads.values()))

    def optimize(self) -> None:
        """Simulates this rank's optimizer step, then the release of gradients (zero_grad) that are no bucket views."""
        begin, end, step_end = self.marks
        self.out.mark(begin)
        optimizer_temporaries(self.plan, self.tables, self.out)
        self.out.mark(end)
        for (layer, slot), num_bytes in self.grads.items():
            self.out.free(layer, slot, num_bytes)
        self.out.mark(step_end)
