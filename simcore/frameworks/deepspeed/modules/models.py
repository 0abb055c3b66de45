"""Calls of the models around layers, as ZeRO's hooks see them: PEFT's, the one with the head, the one in it."""

from __future__ import annotations

from typing import Final

from simcore.frameworks.deepspeed.experts.layers import LAYERS
from simcore.frameworks.deepspeed.modules.units import Call, Calls
from simcore.models.blocks import Attention, GatedDeltaNet, Head, LatentAttention, LayerKind
from simcore.operators.hf.chunked import LM_HEAD
from simcore.placement.plan import Plan

__all__ = ["adapters_around", "inner_model", "is_read_alone", "outer_model", "rotary_calls"]

_MODEL: Final = Call(is_model=True)
_ASKS_EMBEDDING: Final = ("llama4_text",)
"""Families whose model reads the device of its embedding's weight (transformers 5.23 `modeling_llama4.py`:519)."""
_ASKS_HEAD: Final = ("mamba2",)
"""Families whose model reads the type of its head's weight (transformers 5.23 `modeling_mamba2.py`:919)."""
_BY_WINDOW: Final = ("gemma3_text", "gemma4_text", "olmo3")
"""Families with rotary tables for layers with a window and others for those without (5.23 `modeling_gemma3.py`:549)."""


def adapters_around(plan: Plan) -> Calls:
    """Returns the call of the model that PEFT puts around the model, where there are adapters."""
    return [_MODEL] if any(t.module == "adapter" for specs in plan.graph.tensors for t in specs) else []


def outer_model(plan: Plan) -> Call:
    """Returns the call of the model that holds the head."""
    reads_head = LAYERS[plan.graph.implementation].reads_head or plan.graph.architecture.family in _ASKS_HEAD
    return Call(is_model=True, reads="head" if reads_head or is_read_alone(plan) else "")


def is_read_alone(plan: Plan, kind: LayerKind | None = None) -> bool:
    """Returns True if the model reads the head's weight itself, so that no head is called.

    `kind`: of the layer that is asked about, False for all but the head. TRL 1.16.0 `trainer/utils.py`
    add_fused_lm_head; [Note: a head that the model reads] in `simcore/frameworks/deepspeed/prefetch_trace.py`.
    """
    return plan.framework.loss == LM_HEAD and (kind is None or isinstance(kind.block, Head))


def inner_model(plan: Plan) -> Call:
    """Returns the call of the model in it, which holds embedding and layers."""
    return Call(is_model=True, reads="embedding" if plan.graph.architecture.family in _ASKS_EMBEDDING else "")


def rotary_calls(plan: Plan) -> int:
    """Returns how often the module is called that makes rotary tables: once, for each kind of them, or never.

    It is called too where all layers are of a kind that rotates nothing (EXAONE 4, Cohere 2).
    """
    blocks = [branch.block for kind in plan.graph.kinds for branch in kind.branches]
    attention = [block for block in blocks if isinstance(block, Attention)]
    turned = any(block.rotary for block in attention) or any(kind.tables for kind in plan.graph.kinds)
    if not turned and not any(isinstance(block, LatentAttention | GatedDeltaNet) for block in blocks):
        return 0
    return len({block.window > 0 for block in attention}) if plan.graph.architecture.family in _BY_WINDOW else 1
