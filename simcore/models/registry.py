"""Finds a model family by a configuration's `model_type`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from simcore.models.config import ModelFamily

__all__ = ["code_type", "family_of", "known_families", "known_type"]

_MODULES: Final = {
    "arcee": "llama", "bailing_moe": "bailing", "bamba": "bamba", "cohere2": "mistral", "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek", "deepseek_v32": "deepseek", "deepseek_v4": "deepseek", "ernie4_5": "llama",
    "exaone4": "windowed.exaone", "exaone_moe": "windowed.exaone", "falcon_h1": "bamba",
    "gemma": "gemma.earlier", "gemma2": "gemma.earlier", "gemma3_text": "gemma.earlier", "gemma4_text": "gemma.gemma4",
    "gemma4_unified_text": "gemma.gemma4", "glm": "glm", "glm4": "glm", "glm4_moe": "glm", "glm4_moe_lite": "glm",
    "glm_moe_dsa": "glm", "gpt2": "gpt2", "gpt_neox": "beside.gpt_neox", "gpt_oss": "gpt_oss", "granite": "llama",
    "granitemoehybrid": "granitemoehybrid", "hunyuan_v1_dense": "llama", "hy_v3": "bailing", "llama": "llama",
    "llama4_text": "llama", "mamba2": "mamba2", "mimo_v2_flash": "mimo_v2_flash", "minimax_m2": "minimax",
    "mistral": "mistral", "mistral4": "deepseek", "mixtral": "mistral", "mpt": "mpt", "nemotron": "llama",
    "nemotron-nas": "nemotron_nas", "nemotron_h": "nemotron_h", "olmo2": "llama", "olmo3": "llama", "olmoe": "qwen",
    "phi": "phi3", "phi3": "phi3", "qwen2": "qwen", "qwen2_moe": "qwen", "qwen3": "qwen",
    "qwen3_5_moe_text": "qwen3_next", "qwen3_5_text": "qwen3_next", "qwen3_moe": "qwen", "qwen3_next": "qwen3_next",
    "seed_oss": "llama", "smollm3": "llama", "starcoder2": "mistral", "step3p5": "windowed.step", "zamba2": "zamba2",
}
"""The module in `families` of each `model_type`, which is loaded when a configuration has it."""
_WITH_TOWERS: Final = {
    "gemma3": "gemma3", "gemma4": "gemma4", "internvl": "internvl", "kimi_vl": "kimi_vl", "llava": "llava",
    "mistral3": "mistral3", "nemotron_h_omni": "nemotron_omni", "nemotron_h_vl": "nemotron_omni",
    "qwen2_5_vl": "qwen2_5_vl", "qwen2_vl": "qwen2_vl",
    "qwen3_5": "qwen3_5", "qwen3_5_moe": "qwen3_5", "qwen3_vl": "qwen3_vl", "qwen3_vl_moe": "qwen3_vl"}
"""The module in `vision` of each `model_type` of a model that reads images."""
_PUBLISHED: Final = {"NemotronH_Nano_Omni_Reasoning_V3": "nemotron_h_omni", "NemotronH_Nano_VL_V2": "nemotron_h_vl"}
"""The `model_type` here, which is that in transformers if it has one, of those that published files call otherwise."""


_BY_DECODER: Final = ("mistral4",)
"""Decoders by which a framework tells whose code runs a model that reads images, not by the model's own type."""


def code_type(fields: Mapping[str, Any]) -> str:
    """The `model_type` by which a framework chooses the code that runs the model of a configuration's `fields`."""
    text = fields.get("text_config")
    inside = text.get("model_type") if isinstance(text, Mapping) else None
    return str(inside if inside in _BY_DECODER else fields.get("model_type"))


def known_families() -> tuple[str, ...]:
    """Every `model_type` that a configuration may have, in alphabetical order."""
    return tuple(sorted((*_MODULES, *_WITH_TOWERS)))


def known_type(model_type: str) -> str:
    """The `model_type` that is known here of one that a published file, with code of its own, may call otherwise."""
    return _PUBLISHED.get(model_type, model_type)


@lru_cache
def family_of(model_type: str) -> ModelFamily:
    """Model family of a `model_type` that is one of `known_families`; KeyError for another."""
    module = (f"vision.{_WITH_TOWERS[model_type]}" if model_type in _WITH_TOWERS else
              f"families.{_MODULES[model_type]}")
    family: ModelFamily = importlib.import_module(f"simcore.models.{module}").FAMILY
    return family
