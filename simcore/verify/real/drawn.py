"""Parts that drawn cases of Automodel and Megatron share: the model's configuration, and names of components.

A case names its model by `fields` (all of a configuration), or by `preset` with `fields` changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoConfig

from .worker import isolated

Case = dict[str, Any]
PRESETS = Path(__file__).resolve().parents[3] / "simcore" / "models" / "presets"
ARCHITECTURES = {"deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3", "deepseek_v4": "DeepseekV4",
                 "exaone4": "Exaone4",
                 "exaone_moe": "ExaoneMoe", "gemma2": "Gemma2", "gemma3_text": "Gemma3", "glm4_moe": "Glm4Moe",
                 "glm_moe_dsa": "GlmMoeDsa",
                 "gpt_oss": "GptOss", "granite": "Granite", "llama": "Llama", "mistral": "Mistral",
                 "mixtral": "Mixtral", "nemotron_h": "NemotronH", "qwen2": "Qwen2", "qwen2_moe": "Qwen2Moe",
                 "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "qwen3_next": "Qwen3Next"}


def fields_of(case: Case) -> dict[str, Any]:
    """Every field of the case's configuration."""
    base = json.loads((PRESETS / f"{case['preset']}.json").read_text(encoding="utf-8")) if "preset" in case else {}
    fields = {**base, **case.get("fields", {})}
    return {k: v for k, v in fields.items() if not k.startswith("_")}


def configuration(case: Case) -> Any:
    """The configuration of transformers, which raises what transformers raises."""
    fields = fields_of(case)
    family, _ = fields.pop("model_type"), fields.pop("mtp_num_layers", None)  # Megatron's word
    try:
        made = AutoConfig.for_model(family, **fields)
    except StrictDataclassClassValidationError as e:
        raise ValueError(str(e).splitlines()[-1].strip().removeprefix("ValueError: ")) from None
    made.architectures = [f"{ARCHITECTURES[family]}ForCausalLM"]
    made._attn_implementation = "sdpa"
    return made


def component(name: str, words: tuple[tuple[str, str], ...]) -> str:
    """The component of a parameter: the first word that its name contains."""
    found = next((found for word, found in words if word in name), "")
    if not found:
        raise NameError(f"no component for {name}")  # the probe is at fault
    return found


def all_stages(placed: Callable[[Case], dict[str, Any]], case: Case) -> dict[str, Any]:
    """Result of `placed` on the case's rank, or the error that it raises there or on the same rank of another stage."""
    out, pp = isolated(placed, case), case.get("pp", 1)
    step = case["world"] // pp
    if pp > 1 and not {"error", "failed"} & out.keys():
        for rank in range(case["rank"] % step, case["world"], step):
            other = isolated(placed, {**case, "rank": rank}) if rank != case["rank"] else {}
            if {"error", "failed"} & other.keys():
                return {**other, "case": case}
    return out
