"""Tensors that the stem makes for all layers (rotary tables, position ids), and the layer that releases them."""

from __future__ import annotations

import re

from simcore.models.blocks import Attention, LayerKind
from simcore.placement.plan import PlacedKind, Plan

__all__ = ["last_user"]

_TURNED = re.compile(r"\b(q|k|qkv|query_key_value)(_proj|_norm)?\.")
"""Modules whose output is rotated."""


def last_user(plan: Plan, below: dict[int, bool]) -> int:
    """Number (in the whole model) of the layer whose backward frees the tensors that the stem makes for all layers.

    The stem is the model's part before its layers, the tensors are rotary tables and positions. The layer is the lowest
    block of the rank's first chunk that saves them: a replayed one saves all its inputs, another one the tables if
    gradients flow to queries or keys. If none does, it is the first block; -1 for a chunk without blocks. `below`: by
    layer number, True where the layer's input carries a gradient.
    """
    blocks = [layer for layer in plan.chunks[0] if plan.graph.kinds[plan.graph.layers[layer].kind].block is None]
    replays, unreplayed = plan.framework.checkpoint != "none", plan.framework.kept_whole
    for layer in blocks:
        number = plan.graph.layers[layer].kind
        if replays and layer not in unreplayed:
            keeps = below[layer] or plan.kinds[number].is_trained
        else:
            keeps = _turns_gradients(plan.graph.kinds[number], plan.kinds[number], carries=below[layer])
        if keeps:
            return layer
    return blocks[0] if blocks else -1


def _turns_gradients(kind: LayerKind, placed: PlacedKind, *, carries: bool) -> bool:
    """True if gradients flow back to queries or keys; `carries`: the layer's input has a gradient."""
    trained = tuple(p.spec.name for p in placed if p.trainable)
    for branch in kind.branches:
        own = [name for name in trained if name.startswith(f"{branch.name}.")]
        carries = carries or any(name.startswith(f"{branch.norm}.") for name in trained)
        if isinstance(branch.block, Attention) and (carries or any(_TURNED.search(name) for name in own)):
            return True
        carries = carries or bool(own)
    return False
