"""Modules that get adapters, by family: all linear layers, and those that PEFT takes where a recipe names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError
from simcore.models.graph import model_config

__all__ = ["BALANCING", "LINEARS", "LINEARS_BEHIND_TOWERS", "NAMED_BY_PEFT", "family_of", "is_dense"]

_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP: Final = ("gate_proj", "up_proj", "down_proj")
LINEARS: Final = {
    **dict.fromkeys(("cohere2", "ernie4_5", "gemma", "gemma2", "gemma3_text", "gemma4_text", "hunyuan_v1_dense",
                     "llama", "mistral", "olmo3", "qwen2", "qwen3", "seed_oss"), (*_ATTENTION, *_MLP)),
    **dict.fromkeys(("arcee", "nemotron"), (*_ATTENTION, "up_proj", "down_proj")),
    **dict.fromkeys(("glm", "glm4"), (*_ATTENTION, "gate_up_proj", "down_proj")),
    "qwen2_moe": (*_ATTENTION, *_MLP, "shared_expert_gate"),
    "phi": ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "starcoder2": (*_ATTENTION, "c_fc", "c_proj"),
    **dict.fromkeys(("mixtral", "qwen3_moe", "gpt_oss"), _ATTENTION),  # transformers 5: experts are one parameter
}
"""Names of linear layers by family, without the head, in transformers 5.23.0's `models/`."""
LINEARS_BEHIND_TOWERS: Final = {
    **dict.fromkeys(("gemma3", "llava", "mistral3", "qwen2_5_vl", "qwen3_vl"), (*_ATTENTION, *_MLP)),
    "qwen3_vl_moe": _ATTENTION,  # experts are one parameter
}
"""Names of linear layers of the language model alone, of families with a vision tower."""
NAMED_BY_PEFT: Final = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
                    ("q_proj", "v_proj")),
    "nemotron_h": _ATTENTION,
}
"""Modules by family, in PEFT 0.21.2's `utils/constants.py`."""

BALANCING: Final = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "qwen3_next")
"""Families whose configuration weighs a loss that balances experts (5.23.0 `router_aux_loss_coef`)."""
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")


def family_of(model: Any) -> str:
    """`model_type` of a model by the name that a recipe has for it, or of a changed one; "" if it is not known."""
    if isinstance(model, Mapping):
        model = model.get("config")
    try:
        return str(model_config(str(model), None, "").get("model_type", ""))
    except InputError:
        return ""


def is_dense(model: Any) -> bool:
    """True for a model that is known and has no experts."""
    try:
        fields = model_config(str(model.get("config") if isinstance(model, Mapping) else model), None, "")
    except InputError:
        return False
    return not any(fields.get(name) for name in _EXPERTS)
