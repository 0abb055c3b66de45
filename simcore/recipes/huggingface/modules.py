"""Modules that get adapters, by family: all linear layers, and those that PEFT takes where a recipe names none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from simcore.errors import InputError
from simcore.models.blocks import Attention, Mlp, Moe
from simcore.models.graph import build, known_presets, model_config
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken

__all__ = ["BALANCING", "LINEARS_BEHIND_TOWERS", "LINEARS_WITH_TOWERS", "NAMED_BY_PEFT", "family_of", "is_dense",
           "linears_of", "write_linears", "write_targets"]

_ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP: Final = ("gate_proj", "up_proj", "down_proj")
_OF_REPOSITORIES: Final = ("bailing_moe", "nemotron-nas", "step3p5")
"""Families whose code lies beside their weights, with names of its own: transformers 5.23.0 has none."""
LINEARS_BEHIND_TOWERS: Final = {
    **dict.fromkeys(("gemma3", "internvl", "llava", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"),
                    (*_ATTENTION, *_MLP)),
    "qwen3_vl_moe": _ATTENTION,  # experts are one parameter
}
"""Names of linear layers of the language model alone, of families with a vision tower."""
LINEARS_WITH_TOWERS: Final = {"mistral3": (*_ATTENTION, *_MLP, "merging_layer", "linear_1", "linear_2")}
"""Names of linear layers of the tower and its projector too."""
NAMED_BY_PEFT: Final = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
                    ("q_proj", "v_proj")),
    "gpt_neox": ("query_key_value",), "nemotron_h": _ATTENTION,
}
"""Modules by family, in PEFT 0.21.2's `utils/constants.py`."""

_PEFT: Final = "PEFT 0.21.2 tuners/tuners_utils.py _maybe_include_all_linear_layers"
BALANCING: Final = ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "qwen3_next")
"""Families whose configuration weighs a loss that balances experts (5.23.0 `router_aux_loss_coef`)."""
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")


@lru_cache
def linears_of(family: str) -> tuple[str, ...]:
    """Names of a family's linear layers without the head, in the order in which transformers 5.23.0 registers them.

    () for a family without a known model, of a repository's own code, or with layers beside attention, MLPs and
    experts: mixers have linears that a kernel reads whole, towers are another part. Experts are one parameter there.
    """
    named = next((name for name in known_presets() if family_of(name) == family), None)
    if named is None or family in _OF_REPOSITORIES:
        return ()
    graph = build(model_config(named, None, ""), "hf")
    blocks = (branch.block for kind in graph.kinds for branch in kind.branches)
    if graph.architecture.has_tower or not all(isinstance(block, Attention | Mlp | Moe) for block in blocks):
        return ()
    found = (spec.name.split(".")[-2] for layer in graph.layers if graph.kinds[layer.kind].branches
             for spec in graph.tensors[layer.kind] if spec.module == "linear" and spec.name.endswith(".weight"))
    return tuple(dict.fromkeys(found))


def family_of(model: Any) -> str:
    """`model_type` of a model by the name that a recipe has for it, or of a changed one; "" if it is not known.

    Gemma 4's decoders with experts, which have routers, are a family apart from those without.
    """
    if isinstance(model, Mapping):
        model = model.get("config")
    try:
        fields = model_config(str(model), None, "")
    except InputError:
        return ""
    return str(fields.get("model_type", "")) + " with experts" * bool(fields.get("enable_moe_block"))


def is_dense(model: Any) -> bool:
    """True for a model that is known and has no experts."""
    try:
        fields = model_config(str(model.get("config") if isinstance(model, Mapping) else model), None, "")
    except InputError:
        return False
    return not any(fields.get(name) for name in _EXPERTS)


def write_targets(draft: Draft, named: Taken[list[str]] | None, family: str) -> bool:
    """Writes the modules that are `named`, else all linear layers of a family; False if these are not known."""
    if named is None or named.value == ["all-linear"]:
        return write_linears(draft, named, family)
    draft.put("training.lora.target_modules", named)
    return True


def write_linears(draft: Draft, named: Taken[list[str]] | None, family: str) -> bool:
    """Writes all linear layers of a family but the head; False if they are not known."""
    linears = linears_of(family)
    if linears:
        draft.infer("training.lora.target_modules", list(linears), "all linear layers but the head", named,
                    source=_PEFT)
    return bool(linears)
