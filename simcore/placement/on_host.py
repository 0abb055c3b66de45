"""Bytes that a rank keeps on the host during a step: offloaded tensors, and inputs of layers that are recomputed."""

from __future__ import annotations

from simcore.placement.plan import Plan
from simcore.units import dtype_bytes

__all__ = ["host_bytes", "waiting_bytes"]


def waiting_bytes(plan: Plan, tokens: int) -> int:
    """Returns the host bytes of the inputs that one microbatch of `tokens` tokens keeps for recomputation.

    One input [tokens, hidden] for each transformer layer of this rank. 0 unless they are offloaded. Not pinned.
    """
    if not plan.framework.options.inputs_on_host:
        return 0
    layers = sum(plan.graph.kinds[plan.graph.layers[layer].kind].block is None for layer in plan.layers)
    return layers * tokens * plan.graph.architecture.hidden * dtype_bytes(plan.framework.compute_dtype)


def host_bytes(plan: Plan, tokens: int) -> int:
    """Returns the bytes of the rank on the host while one microbatch of `tokens` tokens runs.

    They are offloaded tensors, and inputs of recomputed layers (`waiting_bytes`); no buffers of the framework.
    """
    rests = sum(size for space, size in plan.elsewhere().items() if space.startswith("host"))
    return rests + waiting_bytes(plan, tokens)
