"""Families whose layers are Automodel's own, those that it runs with transformers', and where some are described.

NeMo Automodel 0.7.0 `_transformers/registry.py` MODEL_ARCH_MAPPING has the classes of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from simcore.models.graph import ModelGraph
from simcore.operators.automodel.tensors import moves_stem
from simcore.placement.job import Job

__all__ = ["BY_TRANSFORMERS", "REGISTERED", "check_over_experts", "has_mixer", "implementation_of", "trains_stem"]

_NOT_REGISTERED: Final = (
    "arcee", "cohere2", "ernie4_5", "exaone4", "exaone_moe", "falcon_h1", "gemma", "gemma2", "gemma3", "gemma3_text",
    "gemma4", "gemma4_text",
    "gemma4_unified_text", "glm", "glm4", "granite", "hunyuan_v1_dense", "mistral", "mistral3", "mixtral", "nemotron",
    "olmo2", "olmo3", "phi", "phi3", "qwen2_5_vl", "qwen3_vl", "seed_oss", "starcoder2")
"""Families without own code, and Qwen 3 VL and Gemma 4 without experts, whose classes run transformers' layers without
context parallelism (models/qwen3_vl/model.py, models/gemma4_moe/model.py)."""
REGISTERED: Final = ("gemma4", "qwen3_vl")
"""Families of these whose class is Automodel's all the same."""
BY_TRANSFORMERS: Final = ("llama", "qwen2", "qwen3", "qwen3_moe", *_NOT_REGISTERED)
"""Families of which transformers' layers are served; those with own code too ask for them by `force_hf: true`."""


_OVER_EXPERTS: Final = {"kimi_vl": ("Kimi-VL", ("ep", "pp", "tp", "cp")), "nemotron_h_omni": (
    "Nemotron Omni", ("ep", "pp", "tp"))}
"""Models whose towers are described over experts alone, and axes over which they are not."""


def implementation_of(family: str, method: str) -> str:
    """Returns the layers that Automodel runs by default: "hf" (transformers') or "automodel" (its own).

    `family`: the config's `model_type`; `method`: the training method. transformers' for families without own code, and
    for the method qlora, because bitsandbytes packs transformers' layers only.
    """
    return "hf" if family in _NOT_REGISTERED or method == "qlora" else "automodel"


@lru_cache(maxsize=64)
def has_mixer(graph: ModelGraph, mixer: type) -> bool:
    """True if a layer of the decoder has a block of the class `mixer`."""
    return any(kind.block is None and any(isinstance(branch.block, mixer) for branch in kind.branches)
               for kind in graph.kinds)


@lru_cache(maxsize=64)
def trains_stem(graph: ModelGraph) -> bool:
    """True if a module of multi-token prediction takes the sequence's embeddings, and their table is trained."""
    kinds = [graph.kinds[layer.kind] for layer in graph.layers]
    return any(map(moves_stem, kinds)) and any(spec.trainable for spec in graph.tensors[graph.layers[0].kind])


def check_over_experts(job: Job) -> None:
    """Raises NotYet for other jobs of Kimi-VL and Nemotron Omni than were measured."""
    mesh, (name, axes) = job.mesh, _OVER_EXPERTS.get(job.graph.architecture.family, ("", ()))
    if job.graph.implementation != "automodel" or not name:
        return
    if job.scenario.framework_version not in ("auto", "0.7.0"):
        raise job.not_yet("framework_version", f"{name} under automodel {job.scenario.framework_version}")
    for axis in axes:
        if (getattr(mesh, axis) > 1) != (axis == "ep"):
            raise job.not_yet(f"mesh.{axis}", f"{axis} {getattr(mesh, axis)} of {name} under automodel, which is "
                              "described over experts")
    if name == "Kimi-VL" and job.scenario.training.recompute != "none":
        raise job.not_yet("training.recompute", f"recompute {job.scenario.training.recompute} of Kimi-VL under "
                          "automodel")
