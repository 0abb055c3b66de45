"""The order in which modules of a vision tower are called, as ZeRO's hooks on modules see it.

transformers 5.23 `models/qwen3_vl`, `qwen2_5_vl`, `siglip` and `gemma3`, `pixtral` and `mistral3`. A tower without
gradients is called in forward alone. Behind its end the language model inside begins, with its rotary embedding.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.common.transformers import FROZEN_OPTION, asks_patches
from simcore.frameworks.deepspeed.modules.units import Call, Refs
from simcore.models.placed_blocks import DeepMerger, PlacedLayer, PlacedMerger, PlacedPatches
from simcore.models.vision_blocks import (
    GridLayer,
    GridPatches,
    Merger,
    Patches,
    Projector,
    RowLayer,
    RowPatches,
    RowProjector,
    TowerEnd,
    TowerLayer,
    TowerNorm,
    VisionPart,
)
from simcore.placement.job import Job
from simcore.placement.plan import Plan

__all__ = ["check_tower", "tower_calls"]

_ITSELF, _NONE = "", "-"
"""The part itself; a container or an activation without parameters, whatever its name."""
_MERGER: Final = (_ITSELF, "norm", "linear_fc1", _NONE, "linear_fc2")
_MODULES: Final[dict[type, tuple[str, ...]]] = {
    PlacedPatches: (_ITSELF, _NONE, "patch_embed.proj", "pos_embed", _NONE),
    PlacedLayer: (_ITSELF, "norm1", _NONE, "attn.qkv", "attn.proj", "norm2", _NONE, "mlp.linear_fc1", _NONE,
                  "mlp.linear_fc2"),
    DeepMerger: _MERGER,
    PlacedMerger: _MERGER,
    GridPatches: (_NONE, _ITSELF, "proj", _NONE),
    GridLayer: (_ITSELF, "norm1", _NONE, "attn.qkv", "attn.proj", "norm2", _NONE, "mlp.gate_proj", _NONE, "mlp.up_proj",
                "mlp.down_proj"),
    Merger: (_ITSELF, "ln_q", _NONE, "mlp.0", _NONE, "mlp.2"),
    Patches: (_NONE, _ITSELF, "patch_embedding", "position_embedding", _NONE),
    TowerLayer: (_ITSELF, "layer_norm1", _NONE, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                 "self_attn.out_proj", "layer_norm2", _NONE, "mlp.fc1", _NONE, "mlp.fc2"),
    TowerNorm: (_ITSELF,),
    Projector: (_ITSELF, _NONE, "mm_soft_emb_norm"),
    RowPatches: (_ITSELF, "patch_conv", "ln_pre", _NONE, _NONE),
    RowLayer: (_ITSELF, "attention_norm", _NONE, "attention.q_proj", "attention.k_proj", "attention.v_proj",
               "attention.o_proj", "ffn_norm", _NONE, "feed_forward.gate_proj", _NONE, "feed_forward.up_proj",
               "feed_forward.down_proj"),
    RowProjector: (_ITSELF, "norm", _NONE, "patch_merger.merging_layer", "linear_1", _NONE, "linear_2"),
}

_PLAIN: Final = (_ITSELF, "norm1", _NONE, "attn.qkv", "attn.proj", "norm2", _NONE, "mlp.fc1", _NONE, "mlp.fc2")
"""Modules of a layer of Qwen 2 VL."""


def check_tower(job: Job, stage: int, options: dict[str, Any]) -> None:
    """Raises NotYet for a vision tower whose calls are not known, under ZeRO-3 for one that its backward passes too."""
    parts = [layer for layer in job.graph.layers if isinstance(job.graph.kinds[layer.kind].block, VisionPart)]
    tower = [job.graph.tensors[layer.kind] for layer in parts]
    if any(type(job.graph.kinds[layer.kind].block) not in _MODULES for layer in parts):
        raise job.not_yet("model", f"the vision tower of {job.graph.architecture.family} under zero{stage}")
    if stage < 3:
        return
    if asks_patches(job, options):
        raise job.not_yet("training.recompute", "a vision tower under zero3 whose front transformers' checkpoints ask "
                          "for a gradient (served: those of Qwen 3 VL and Qwen 3.5, and others without recompute or "
                          f"in full training with {FROZEN_OPTION}: false)")
    if any(spec.trainable and not spec.is_buffer for specs in tower for spec in specs):
        raise job.not_yet("training.frozen", "a vision tower or projector that is trained under zero3")


def tower_calls(plan: Plan, layer: int) -> tuple[Call, ...]:
    """Returns the module calls of a part of a tower's forward; `layer`: its number in the whole model, embedding 0."""
    block, own = plan.graph.kinds[plan.graph.layers[layer].kind].block, dict[str, Refs]()
    for number, placed in enumerate(plan.of_layer(layer)):
        if not placed.spec.is_buffer:
            path = placed.spec.name.rpartition(".")[0]
            own[path] = (*own.get(path, ()), (number, 0))
    everything = tuple(ref for refs in own.values() for ref in refs)
    calls = [Call(own.get(path, ()), everything if path == _ITSELF else own.get(path, ()))
             for path in (_PLAIN if isinstance(block, GridLayer) and block.plain else _MODULES[type(block)])]
    if isinstance(block, TowerEnd):
        calls += [Call(is_model=True), Call()]
    return tuple(calls)
