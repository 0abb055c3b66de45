"""Gradients of ZeRO-3's shards on the host, and the step there: [Note: ZeRO on the host]."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.frameworks.common.cpu_optimizer import copied, updated_on_host
from simcore.frameworks.deepspeed.offload_buffers import num_moments
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.hardware.nvme import aligned, is_swapped, stays_on_device, whole_pieces
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.units import dtype_bytes

__all__ = ["GradientsOnHost"]

FP32 = 4
READ, WRITE = 1, 2


class GradientsOnHost:
    """Writer of the events of ZeRO-3's gradients and optimizer step on the host.

    They are copies, and temporary memory on the device; none if optimizer states are on the device.
    """

    def __init__(self, plan: Plan, tables: Tables, out: Builder, strategy: ZeroStrategy) -> None:
        self.plan, self.tables, self.out, self.strategy, self.first = plan, tables, out, strategy, plan.layers[0]
        self.size = dtype_bytes(plan.framework.compute_dtype)
        self.slot = tables.slot("grad_on_its_way", "reduce_scatter_output")
        self.num_states = 1 + num_moments(plan)
        self.waiting, self.num_waiting, self.num_written = tables.slot("unswapped_grads", "main_grad"), 0, 0

    def send(self, each: Sequence[int], *, is_last: bool) -> None:
        """Simulates the copy of a reduced bucket's shards to the host and back, one by one.

        `each`: elements of the shards. If `is_last` (microbatch of the step) they are also sent in fp32, with NVMe all
        together, except those that wait on the device.
        """
        if not self.strategy.states_on_host:
            return
        parts, largest = sum(each), max(each, default=0)
        waiting = FP32 * sum(filter(stays_on_device, each)) * (is_last and self.strategy.swap_buffers > 0)
        self.out.alloc(self.first, self.waiting, waiting)
        self.num_waiting += waiting
        self.num_written += FP32 * sum(map(whole_pieces, filter(is_swapped, each))) * is_last
        together = parts - waiting // FP32 if self.strategy.swap_buffers else largest
        taken = largest * self.size + FP32 * together * is_last
        self.out.alloc(self.first, self.slot, taken)
        for direction in ("to_host", "to_device"):
            self._copied(direction, self.plan.framework.compute_dtype, self.size * parts)
        self._copied("to_host", "fp32", FP32 * parts * is_last)
        self.out.free(self.first, self.slot, taken)

    def step(self, groups: Sequence[int]) -> None:
        """Simulates the optimizer's step on the host; `groups`: elements of each sub-group.

        With NVMe also its reads and writes. Parameters are copied back unless they rest on the host too.
        """
        elements = sum(groups)
        swapped = FP32 * sum(map(aligned, filter(is_swapped, groups))) * (self.strategy.swap_buffers > 0)
        if swapped:  # gradients must be written before they are read again
            self.out.host(self.num_written, WRITE)
            self.out.host(self.num_states * swapped + self.num_written, READ)
        updated_on_host(self.plan, elements, self.out)
        if swapped:
            self.out.host(self.num_states * swapped, WRITE)
        self.out.free(self.first, self.waiting, self.num_waiting)
        self.num_waiting = self.num_written = 0
        self._copied("to_device", self.plan.framework.compute_dtype,
                     self.size * elements * (not self.strategy.params_on_host))

    def _copied(self, direction: str, dtype: str, num_bytes: int) -> None:
        if num_bytes:
            copied(self.first, direction, dtype, num_bytes, self.tables, self.out)
