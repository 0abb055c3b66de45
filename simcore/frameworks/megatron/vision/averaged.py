"""Gradients of modules of transformers, which are whole on every tp rank and averaged over them.

Megatron-Bridge 067f987d `utils/common_utils.py:160` (hook_hf_module_setattr_for_tp_grad_sync) marks their parameters.
Megatron-LM d98e8a64 `core/distributed/finalize_model_grads.py:416`: behind the reductions of the step all their
main_grads are copied into one tensor, which is all-reduced and copied back.
"""

from __future__ import annotations

from simcore.models.vision_blocks import WholePart
from simcore.placement.plan import Plan

__all__ = ["averaged_elements"]


def averaged_elements(plan: Plan) -> int:
    """Elements of the rank's gradients that are averaged over tp; 0 with one tp rank, or a tower cut over them."""
    if plan.mesh.tp == 1:
        return 0
    blocks = plan.graph.kinds
    return sum(count * sum(placed.local for placed in plan.kinds[kind] if placed.trainable)
               for kind, count in plan.kind_counts if isinstance(blocks[kind].block, WholePart))
