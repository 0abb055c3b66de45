"""Memory hooks of DeepSpeed without ZeRO: [Note: stage 0] in `simcore/frameworks/deepspeed/strategy.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.frameworks.common.optimizer_memory import optimizer_sizes, post_rest, rest_postings
from simcore.frameworks.deepspeed.experts.layers import EXPERTS_AXIS, axis_of
from simcore.frameworks.deepspeed.partitions import largest_trained
from simcore.frameworks.deepspeed.strategy import WholeStrategy
from simcore.pipeline.schedule import Action
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.hooks import UnrepeatedHooks
from simcore.program.outline import Tables
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Param, Stream
from simcore.units import dtype_bytes

__all__ = ["WholeHooks"]

BUCKET: Final = 500_000_000
"""Elements of gradients after which no more join a reduction: deepspeed 0.19.6 engine.py MEMORY_OPT_ALLREDUCE_SIZE."""
WIDE: Final = 4
"""Bytes of an element of masters, moments, and of the gradients that the update reads."""


class WholeHooks(UnrepeatedHooks):
    """Writer of the memory events of one rank's step under stage 0.

    Each method simulates one point of the step (`program.hooks.MemoryHooks`): it writes the events to `builder`.
    """

    def __init__(self, plan: Plan, tables: Tables, builder: Builder) -> None:
        self.plan, self.tables, self.out = plan, tables, builder
        self.strategy = plan.framework.strategy_as(WholeStrategy)
        self.size, self.first = dtype_bytes(plan.framework.compute_dtype), plan.layers[0]
        self.grads: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.slots = {name: tables.slot(name, category) for name, category in (
            ("flat_bucket", "reduce_scatter_input"), ("grad_norm", "optim_temp"), ("fp32_grads", "optim_temp"),
            ("flat_grad", "optim_temp"), ("sqrt_exp_avg_sq", "optim_temp"))}
        self.marks = [tables.hook(text) for text in ("opt:begin", "opt:end", "step:end")]
        self.is_last = False

    # ---- MemoryHooks --------------------------------------------------------------------------------------------
    def post_persistent(self) -> None:
        """Simulates the allocation of all that lives across steps: parameters, masters and moments."""
        post_rest(self.plan, self.tables, self.out, rest_postings)

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
        `Tables.slots`, bytes) each.
        """
        numbers = {placed.spec.name: number for number, placed in enumerate(self.plan.of_layer(layer))}
        for param, slot, num_bytes in grads:
            number = numbers[param.name]
            if (layer, number) in self.grads:
                self.out.free(layer, slot, num_bytes)
            else:
                self.grads[layer, number] = (slot, num_bytes, self.plan.of_layer(layer)[number].used_copies)

    def experts(self, layer: int, mark: int, grads: Sequence[tuple[Param, int, int]], *, replay: bool) -> None:
        """Simulates nothing: experts are no separate unit here, and no argument is used."""

    def end_pass(self, action: Action) -> None:
        """Simulates, behind the step's last backward, the reduction of all gradients in the order of the model.

        DeepSpeed's experts come last, over their own ranks (0.19.6 engine.py, buffered_allreduce_fallback).
        """
        if action.forward or not self.is_last:
            return
        ours = [key for key in sorted(self.grads) if self._is_experts(key)]
        dense = [key for key in sorted(self.grads) if key not in set(ours)]
        for axis, keys in ((self.strategy.axis, dense), (EXPERTS_AXIS, ours)):
            self._reduce_all(axis, [size for key in keys for size in self._sizes(key)])

    def _is_experts(self, key: tuple[int, int]) -> bool:
        return axis_of(self.plan.of_layer(key[0])[key[1]]) == EXPERTS_AXIS

    def _sizes(self, key: tuple[int, int]) -> list[int]:
        """Bytes of a parameter's gradients: one, or one an expert."""
        _, num_bytes, copies = self.grads[key]
        return [num_bytes // copies] * copies

    def _reduce_all(self, axis: str, sizes: Sequence[int]) -> None:
        """Reduces gradients of these bytes over a mesh axis, as many together as exceed a bucket."""
        bucket: list[int] = []
        for num_bytes in sizes:
            bucket.append(num_bytes)
            if sum(bucket) > BUCKET * self.size:
                self._reduce(axis, bucket)
                bucket = []
        if bucket:
            self._reduce(axis, bucket)

    def _reduce(self, axis: str, bucket: Sequence[int]) -> None:
        """Lays gradients of these bytes flat, all-reduces and divides them, and copies them back."""
        num_bytes, copied = sum(bucket), len(bucket) > 1
        wire = self.strategy.reduce_dtype or self.plan.framework.compute_dtype
        sent = num_bytes // self.size * dtype_bytes(wire)
        held = num_bytes * copied + sent * (sent > num_bytes)
        self.out.alloc(self.first, self.slots["flat_bucket"], held)
        self.out.compute(Kernel.COPY, 0, 2 * num_bytes * copied + 2 * (num_bytes + sent) * (sent > num_bytes))
        if axis:
            comm = self.tables.comm("all_reduce", axis, wire)
            self.out.collective(self.first, comm, sent, Stream.COMPUTE, int(Module.NONE))
            self.out.compute(Kernel.ELEMENTWISE, num_bytes // self.size, 2 * sent)
        self.out.compute(Kernel.COPY, 0, 2 * num_bytes)
        self.out.free(self.first, self.slots["flat_bucket"], held)

    def optimize(self) -> None:
        """Simulates this rank's optimizer step, and the release of gradients."""
        begin, end, step_end = self.marks
        self.out.mark(begin)
        if not self.strategy.casts:
            self._update(0)
        elif self.strategy.is_flat_master:
            self._step_flat()
        else:
            self._step_each()
        self.out.mark(end)
        self._drop_gradients()
        self.out.mark(step_end)

    @property
    def _elements(self) -> int:
        return sum(num_bytes for _, num_bytes, _ in self.grads.values()) // self.size

    def _step_flat(self) -> None:
        """Gradients in fp32, flat beside them; then the flat ones alone are left, which the update reads."""
        wide, copied = WIDE * self._elements, len(self.grads) > 1
        self.out.alloc(self.first, self.slots["fp32_grads"], wide)
        self.out.alloc(self.first, self.slots["flat_grad"], wide * copied)
        self.out.free(self.first, self.slots["fp32_grads"], wide * copied)
        self._drop_gradients()
        self._update(wide // WIDE * (self.size + WIDE) + 5 * wide * copied)
        self.out.free(self.first, self.slots["flat_grad" if copied else "fp32_grads"], wide)

    def _step_each(self) -> None:
        """Norms of gradients that are cast one by one, then all in fp32, which the update reads."""
        wide, looked_at = WIDE * self._elements, WIDE * largest_trained(self.plan)
        self.out.alloc(self.first, self.slots["grad_norm"], looked_at)
        self.out.free(self.first, self.slots["grad_norm"], looked_at)
        self.out.alloc(self.first, self.slots["fp32_grads"], wide)
        self._update(wide // WIDE * (2 * self.size + 3 * WIDE) + 2 * wide)
        self.out.free(self.first, self.slots["fp32_grads"], wide)

    def _update(self, before: int) -> None:
        """Update of all parameters; `before`: bytes that casts, norm and scaling move ahead of it."""
        sizes = optimizer_sizes(self.plan)
        self.out.compute(Kernel.ELEMENTWISE, 0, before)
        self.out.alloc(self.first, self.slots["sqrt_exp_avg_sq"], sizes.held)
        self.out.compute(Kernel.OPTIMIZER, sizes.flops, sizes.moved)
        self.out.free(self.first, self.slots["sqrt_exp_avg_sq"], sizes.held)

    def _drop_gradients(self) -> None:
        for (layer, _), (slot, num_bytes, _) in self.grads.items():
            self.out.free(layer, slot, num_bytes)
        self.grads.clear()
