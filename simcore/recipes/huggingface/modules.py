"""Modules that get adapters, by family: all linear layers, and those that PEFT takes where a recipe names none."""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import InputError
from simcore.models.graph import model_config

__all__ = ["LINEARS", "NAMED_BY_PEFT", "family_of"]

_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP: Final = ("gate_proj", "up_proj", "down_proj")
LINEARS: Final = {
    **dict.fromkeys(("cohere2", "ernie4_5", "gemma", "gemma2", "gemma3_text", "hunyuan_v1_dense", "llama", "mistral",
                     "olmo3", "qwen2", "qwen3", "seed_oss"), (*_ATTENTION, *_MLP)),
    **dict.fromkeys(("arcee", "nemotron"), (*_ATTENTION, "up_proj", "down_proj")),
    **dict.fromkeys(("glm", "glm4"), (*_ATTENTION, "gate_up_proj", "down_proj")),
    "phi": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "starcoder2": (*_ATTENTION, "c_fc", "c_proj"),
    **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss"), _ATTENTION),  # transformers 5: experts are one parameter
}
"""Names of linear layers by family, without the head, in transformers 5.23.0's `models/`."""
NAMED_BY_PEFT: Final = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
                    ("q_proj", "v_proj")),
    "nemotron_h": _ATTENTION,
}
"""Modules by family, in PEFT 0.21.2's `utils/constants.py`."""


def family_of(model: Any) -> str:
    """`model_type` of a model by the name that a recipe has for it; "" if it is not known."""
    try:
        return str(model_config(str(model), None, "").get("model_type", ""))
    except InputError:
        return ""
