"""The layers whose backward pass frees what the stem, the model's part before its layers, makes for all of them.

Input: a plan, and which layers' inputs carry a gradient. Output: `users_of_stem`: the layers, each with its part.

[Note: tensors of the stem]
The stem makes rotary tables and positions. They are freed in the backward pass of the lowest layer of the stage that
saves them: a replayed layer saves all its inputs, another one the tables if gradients flow to queries or keys. So that
layer is recorded separately. Where layers with a window have tables of their own, each layer is called with those of
its type alone (transformers 5.23 `modeling_gemma3.py`:556, `modeling_gemma4.py`:1698): the lowest of each type frees
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from simcore.models.blocks import Attention, LatentAttention, LayerKind, Mixer
from simcore.placement.plan import PlacedKind, Plan
from simcore.recording.layer import STEM_PARTS

__all__ = ["ALL", "users_of_stem"]

ALL, _OWN, _TABLES = STEM_PARTS
_TURNED = re.compile(r"\b(q|k|qkv|query_key_value|q_a|q_b)(_proj|_norm|_layernorm)?\.|\bkv_a_proj_with_mqa\.")
"""Modules whose output is rotated."""


def users_of_stem(plan: Plan, below: Mapping[int, bool]) -> dict[int, str]:
    """Part of the stem's tensors that a layer's backward frees, by number in the whole model; other layers are absent.

    It is the lowest that keeps them, or the lowest with each class of mixer, or of each type with tables of its own.
    `below`: by layer number, True where the layer's input carries a gradient.
    """
    if plan.framework.options.frees_tables_by_mixer:
        found: dict[type, int] = {}
        for layer in plan.chunks[0]:
            kind = _kind_of(plan, layer)
            if kind.block is None:
                found.setdefault(type(kind.branches[0].block), layer)
        return dict.fromkeys(found.values(), ALL)
    lowest = _lowest(plan, below, lambda _: True)
    if not any(map(_has_own_tables, plan.graph.kinds)):
        return {_first_block(plan) if lowest is None else lowest: ALL}
    by_type = (_lowest(plan, below, _of_window), _lowest(plan, below, lambda kind: not _of_window(kind)))
    first, *later = sorted(layer for layer in by_type if layer is not None) or [_first_block(plan)]
    return {first: _OWN if later else ALL, **dict.fromkeys(later, _TABLES)}


def _lowest(plan: Plan, below: Mapping[int, bool], is_asked: Callable[[LayerKind], bool]) -> int | None:
    """Number, in the whole model, of the lowest asked layer of the rank's first chunk that keeps tensors of the stem.

    A replayed one saves all its inputs, another one the tables if gradients flow to queries or keys.
    """
    rotates = any(_rotates(branch.block) for kind in plan.graph.kinds for branch in kind.branches)
    replays, unreplayed = plan.framework.checkpoint != "none", plan.framework.kept_whole
    for layer in _blocks(plan):
        kind, placed = _kind_of(plan, layer), plan.kinds[plan.graph.layers[layer].kind]
        if not is_asked(kind):
            continue
        if replays and layer not in unreplayed:
            keeps = below[layer] or placed.is_trained
        else:
            keeps = _turns_gradients(kind, placed, carries=below[layer], rotates=rotates)
        if keeps:
            return layer
    return None


def _kind_of(plan: Plan, layer: int) -> LayerKind:
    return plan.graph.kinds[plan.graph.layers[layer].kind]


def _blocks(plan: Plan) -> list[int]:
    """Transformer layers of the rank's first chunk, by number in the whole model."""
    return [layer for layer in plan.chunks[0] if _kind_of(plan, layer).block is None]


def _first_block(plan: Plan) -> int:
    """Number of the first of `_blocks`; -1 for a chunk without any."""
    return next(iter(_blocks(plan)), -1)


def _has_own_tables(kind: LayerKind) -> bool:
    """True for a layer that reads rotary tables, while others pass by."""
    return kind.tables > 0 and any(isinstance(branch.block, Attention) and branch.block.rotary
                                   for branch in kind.branches)


def _of_window(kind: LayerKind) -> bool:
    return any(isinstance(branch.block, Attention) and branch.block.window > 0 for branch in kind.branches)


def _rotates(block: Mixer) -> bool:
    return isinstance(block, LatentAttention) or (isinstance(block, Attention) and block.rotary)


def _turns_gradients(kind: LayerKind, placed: PlacedKind, *, carries: bool, rotates: bool) -> bool:
    """True if gradients flow back to queries or keys; `carries`: the layer's input has a gradient.

    `rotates`: some layers of the model rotate, and those alone keep tables.
    """
    trained = tuple(p.spec.name for p in placed if p.trainable)
    for branch in kind.branches:
        own = [name for name in trained if name.startswith(f"{branch.name}.")]
        carries = carries or any(name.startswith(f"{branch.norm}.") for name in trained)
        turns = _rotates(branch.block) or (isinstance(branch.block, Attention) and not rotates)
        if turns and (carries or any(_TURNED.search(name) for name in own)):
            return True
        carries = carries or bool(own)
    return False
