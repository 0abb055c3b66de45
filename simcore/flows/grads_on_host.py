"""Gradients of ZeRO-3's parts that rest on the host, and the step there: [Note: ZeRO on the host] in `simcore.zero`."""

from __future__ import annotations

from simcore.flows.hosted import copied, updated_on_host
from simcore.outline import Builder, Tables
from simcore.plan import Plan
from simcore.units import dtype_bytes
from simcore.zero import Zero

__all__ = ["GradientsOnHost"]

FP32 = 4


class GradientsOnHost:
    """Rows of copies and of what they need on the device; nothing where states are there."""

    def __init__(self, plan: Plan, tables: Tables, out: Builder, flow: Zero) -> None:
        self.plan, self.tables, self.out, self.flow, self.first = plan, tables, out, flow, plan.layers[0]
        self.size = dtype_bytes(plan.framework.compute_dtype)
        self.slot = tables.slot("grad_on_its_way", "reduce_scatter_output")

    def send(self, parts: int, largest: int, *, is_last: bool) -> None:
        """Elements of a bucket's parts go there and come back one by one, in the last microbatch to be sent in fp32."""
        if not self.flow.states_on_host:
            return
        taken = largest * (self.size + FP32 * is_last)
        self.out.alloc(self.first, self.slot, taken)
        for direction in ("to_host", "to_device"):
            self._copied(direction, self.plan.framework.compute_dtype, self.size * parts)
        self._copied("to_host", "fp32", FP32 * parts * is_last)
        self.out.free(self.first, self.slot, taken)

    def step(self, elements: int) -> None:
        """All groups; the way back is none where parameters rest there too."""
        updated_on_host(self.plan, elements, self.out)
        self._copied("to_device", self.plan.framework.compute_dtype,
                     self.size * elements * (not self.flow.params_on_host))

    def _copied(self, direction: str, dtype: str, num_bytes: int) -> None:
        if num_bytes:
            copied(self.first, direction, dtype, num_bytes, self.tables, self.out)
