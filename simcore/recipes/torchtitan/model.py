"""The model of a job configuration, by name and flavor, and products in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError
from simcore.models.graph import model_config
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Unmodelled, read_rows
from simcore.recipes.torchtitan.flavors import FLAVORS, OTHER_MODELS, Flavor

__all__ = ["RELEASE", "SOURCE", "has_experts", "read_model", "read_products"]

RELEASE: Final = "torchtitan 0.2.2"
SOURCE: Final = "config/job_config.py"
_NAME, _FLAVOR = "llama3", "debugmodel"
"""Defaults of `model.name` and `model.flavor`."""
_FLOAT8: Final = ("quantize.linear.float8", "float8")
"""The converter, and the block of its settings, as of 0.2 and of 0.1."""
_SETTINGS: Final = ("enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp", "recipe_name",
                    "filter_fqns", "emulate")
_OTHER_CONVERTERS: Final = Idle((
    "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice", "quantize.linear.mx.recipe_name",
    "quantize.linear.mx.filter_fqns", "quantize.grouped_mm.float8.fqns", "quantize.grouped_mm.mx.recipe_name",
    "quantize.grouped_mm.mx.fqns", "float8.moe_fqns_prototype"), "model.converters does not name this converter")
_UNREAD: Final = Idle(("model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion"),
                      "files and messages: not part of a step")


def read_model(reader: Reader, draft: Draft) -> Mapping[str, Any] | None:
    """Reads the block `model` without its converters, and returns the model's sizes.

    They are empty for a model that is not known, None for one that nothing else of the recipe can be read for.
    """
    read_rows(reader, draft, [_UNREAD])
    name, flavor = reader.text("model.name"), reader.text("model.flavor")
    if (given := draft.answers.settings.get("model")) is not None:
        draft.idle([one for one in (name, flavor) if one], "the model is given")
        return _sizes(str(given))
    if name is not None and name.value not in FLAVORS:
        known = "a model that is" if name.value in OTHER_MODELS else "a model of one's own, which is"
        draft.refuse(name, f"{name.value}: {known} not simulated in the layers of torchtitan (read are "
                           f"{', '.join(FLAVORS)})", always=True)
        draft.idle(flavor, "of a model that is refused")
        return None
    kind = name.value if name else _NAME
    flavors = FLAVORS[kind]
    word = flavor.value if flavor else _FLAVOR
    if word not in flavors:
        draft.use(name, why="the family of a flavor that is refused")
        draft.refuse(flavor, f"{word}: no flavor of {RELEASE} (it has {', '.join(flavors)})", always=True)
        return None
    found = flavors[word]
    rule, source = f"{kind} {word}", f"{RELEASE} models/{kind}/__init__.py"
    if found.attention == "flex":
        draft.infer("framework_options.attn", "flex", rule, flavor, name, source=source)
    elif found.attention != "sdpa":
        draft.refuse(flavor, f"{word}: attention by {found.attention}_attention")
        flavor = None
    changed = found.changed()
    draft.infer("model.config" if changed else "model", found.preset, rule, flavor, name, source=source)
    for field, value in changed.items():
        draft.infer(f"model.overrides.{field}", value, rule, flavor, name, source=source)
    return _complete(found)


def _complete(flavor: Flavor) -> Mapping[str, Any]:
    return {**model_config(flavor.preset, None, ""), **flavor.sizes}


def _sizes(reference: str) -> Mapping[str, Any]:
    try:
        return model_config(reference, None, "")
    except InputError:
        return {}


def has_experts(sizes: Mapping[str, Any]) -> bool:
    """True for a model with routed experts."""
    return any(sizes.get(name) for name in ("num_experts", "n_routed_experts", "num_local_experts"))


def read_products(reader: Reader, draft: Draft) -> bool:
    """Reads the converters and their settings; True if linears of blocks are products in fp8."""
    converters = reader.words("model.converters")
    asked = converters.value if converters else []
    block = next((one for one in _FLOAT8 if reader.is_mapping(one)), _FLOAT8[0])
    others = [one for one in asked if one not in _FLOAT8]
    if others:
        draft.refuse(converters, f"converter {', '.join(others)}")
        read_rows(reader, draft, [_OTHER_CONVERTERS])
        draft.idle(reader.matching(*(f"{block}.{name}" for name in _SETTINGS)), "beside a converter that is refused")
        return False
    read_rows(reader, draft, [_OTHER_CONVERTERS])
    if not asked:
        draft.idle(converters, "no converter")
        draft.idle(reader.matching(*(f"{one}.{name}" for one in _FLOAT8 for name in _SETTINGS)),
                   "model.converters does not name this converter")
        return False
    return _read_float8(reader, draft, block)


def _read_float8(reader: Reader, draft: Draft, block: str) -> bool:
    """Reads torchao's Float8Linear: a scale a tensor or a row, in all linears but the output."""
    converters = reader.words("model.converters")
    filtered, recipe = reader.words(f"{block}.filter_fqns"), reader.text(f"{block}.recipe_name")
    if recipe is not None and recipe.value not in ("tensorwise", "rowwise"):
        draft.refuse(recipe, f"products in fp8 with scales {recipe.value}")
    elif recipe is not None:
        draft.put("framework_options.fp8_recipe", recipe)
    if filtered is None or filtered.value != ["output"]:
        draft.refuse(filtered or converters, "products in fp8 in other linears than all but the output "
                                             f'({block}.filter_fqns = ["output"])')
    else:
        draft.use(filtered, why="the output stays in 16 bits, as it is counted")
    if filtered is not None:
        draft.put("training.precision.compute", converters, "fp8")
    gathered = reader.flag(f"{block}.enable_fsdp_float8_all_gather")
    if gathered is not None and gathered.value:
        draft.put("framework_options.fp8_all_gather", gathered)
    else:
        draft.idle(gathered, "the default")
    precomputed = reader.flag(f"{block}.precompute_float8_dynamic_scale_for_fsdp")
    if precomputed is not None and precomputed.value:
        draft.unmodelled(precomputed, "scales of all weights at once, a number each, after the optimizer's step")
    else:
        draft.idle(precomputed, "the default")
    read_rows(reader, draft, [Off(f"{block}.emulate", "products in fp8 that are emulated"),
                              Unmodelled((f"{block}.force_recompute_fp8_weight_in_bwd",), "not told apart")])
    return True
