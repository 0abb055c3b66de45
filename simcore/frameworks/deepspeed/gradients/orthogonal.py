"""Updates of matrices by DeepSpeed's Muon under ZeRO-1 and 2: [Note: Muon under ZeRO] in `../states/muon.py`."""

from __future__ import annotations

from simcore.frameworks.deepspeed.states.muon import held_in_update, product_flops
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.tape import Kernel
from simcore.units import dtype_bytes

__all__ = ["OrthogonalUpdates"]


class OrthogonalUpdates:
    """Writer of the memory events of one rank's updates of matrices, to `out`.

    `part`: elements of the rank's part of all matrices that are trained; `shapes`: (matrices, the smaller, the larger
    side) of each parameter that has an element in it.
    """

    def __init__(self, plan: Plan, part: int, shapes: list[tuple[int, int, int]], tables: Tables, out: Builder) -> None:
        self.part, self.shapes, self.out, self.first = part, shapes, out, plan.layers[0]
        self.size = dtype_bytes(plan.framework.compute_dtype)
        self.numel = sum(many * small * large for many, small, large in shapes)
        self.slots = {name: tables.slot(name, "optim_temp") for name in (
            "newton_schulz", "matrix_updates", "grad_norm", "flat_grad", "fp32_grad")}

    @property
    def held(self) -> int:
        """Bytes of all updates; zeros of the rank's part if no matrix has an element in it."""
        return self.size * (self.numel or self.part)

    def make(self) -> None:
        """Simulates the updates behind the last backward, one after the other; each result stays.

        Of momentum and gradient three passes, as both are mixed where they are.
        """
        if not self.shapes:
            self.out.alloc(self.first, self.slots["matrix_updates"], self.held)
        for shape in self.shapes:
            num_bytes = self.size * shape[0] * shape[1] * shape[2]
            self.out.alloc(self.first, self.slots["newton_schulz"], held_in_update(shape))
            self.out.compute(Kernel.OPTIMIZER, 6 * num_bytes // self.size, 6 * num_bytes)
            self.out.compute(Kernel.GEMM, product_flops(shape), 2 * num_bytes)
            self.out.free(self.first, self.slots["newton_schulz"], held_in_update(shape))
            self.out.alloc(self.first, self.slots["matrix_updates"], num_bytes)

    def step(self, looked_at: int) -> None:
        """Simulates the norm, which takes `looked_at` bytes, and the addition of the updates to the rank's masters.

        A flat copy of its part of them, its copy in fp32; then the updates are released. As for other parameters:
        DeepSpeed 0.19.6 `stage_1_and_2.py` step, `muon_optimizer.py` step.
        """
        part = self.part
        for name, num_bytes in (("grad_norm", looked_at), ("flat_grad", self.size * part), ("fp32_grad", 4 * part)):
            self.out.alloc(self.first, self.slots[name], num_bytes)
            if name == "grad_norm":
                self.out.free(self.first, self.slots[name], num_bytes)
        self.out.free(self.first, self.slots["flat_grad"], self.size * part)
        self.out.free(self.first, self.slots["matrix_updates"], self.held)
        self.out.compute(Kernel.OPTIMIZER, 3 * part, (4 * 5 + self.size) * part)
        self.out.free(self.first, self.slots["fp32_grad"], 4 * part)
