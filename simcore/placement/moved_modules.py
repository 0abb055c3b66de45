"""Layers with modules whose saved tensors wait on the host, and what of each layer stays.

See [Note: modules on the host] in `recording/offload_groups.py`.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Attention, LatentAttention, LayerKind, Moe, Mtp
from simcore.placement.framework import ModuleOffload
from simcore.placement.plan import Plan
from simcore.recording.offload_groups import ModuleGroups

__all__ = ["NONE", "groups_of", "moved_modules", "runs_of"]

NONE: Final = (0, -1)
"""Value of `moved_modules` for a layer without such modules."""
_BLOCKS: Final[dict[str, tuple[type, ...]]] = {
    "core_attn": (Attention, LatentAttention), "attn_proj": (Attention, LatentAttention), "expert_fc1": (Moe,),
    "fused_group_mlp": (Moe,)}


def runs_of(kind: LayerKind, module: str) -> int:
    """Number of times that a layer runs a module: several in one of multi-token prediction."""
    times = sum(isinstance(branch.block, _BLOCKS[module]) for branch in kind.branches)
    return times * (kind.block.depths if isinstance(kind.block, Mtp) else 1)


def moved_modules(plan: Plan) -> dict[int, tuple[int, int]]:
    """By layer number: (layers down to the next one with such modules, or 0; number of the run that stays, or -1).

    Only layers with such modules; all of them have all.
    """
    offload = plan.framework.offload
    if not isinstance(offload, ModuleOffload):
        return {}
    runs = {layer: runs_of(plan.graph.kinds[plan.graph.layers[layer].kind], offload.modules[0])
            for layer in plan.layers}
    with_modules = [layer for layer in plan.layers if runs[layer]]
    below = dict(zip(with_modules[1:], with_modules, strict=False))
    return {layer: (layer - below.get(layer, layer), runs[layer] - 1 if layer == with_modules[-1] else -1)
            for layer in with_modules}


def groups_of(plan: Plan, kind: LayerKind, moved: tuple[int, int]) -> ModuleGroups | None:
    """Groups of a layer for its recording, None if it has no such module; `moved`: as `moved_modules` has it."""
    offload = plan.framework.offload
    if not isinstance(offload, ModuleOffload) or not runs_of(kind, offload.modules[0]):
        return None
    return ModuleGroups(offload.modules, offload.least, *moved)
