"""Blocks `fp8` (torchao) and `compile` of an Automodel recipe."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Says, read_rows, write_rows

__all__ = ["asks_float8", "read_compile", "read_float8", "write_float8"]

_ENABLED: Final = "fp8.enabled"
_FILTER: Final = "fp8.filter_fqns"
_COMPUTE: Final = "training.precision.compute"
_ROWS: Final = (
    Says("fp8.recipe_name", "", "text", {None: None}, {"tensorwise": "the scale of a tensor, as by default"},
         "products in 8 bits with scales"),
    Says("fp8.enable_fsdp_float8_all_gather", "framework_options.fp8_all_gather", "flag"),
    Off("fp8.emulate", "products in 8 bits that are emulated"),
    Idle(("fp8.precompute_float8_dynamic_scale_for_fsdp",), "scales of all weights at once: a few bytes"),
    Idle(("fp8.force_recompute_fp8_weight_in_bwd",), "torchao reads it no more (float8/config.py: deprecated)"),
)


def asks_float8(reader: Reader) -> bool:
    """True if the recipe switches torchao's products in 8 bits on."""
    return reader.look(_ENABLED) is True


def read_float8(reader: Reader, draft: Draft) -> None:
    """Reads the block `fp8`."""
    enabled = reader.flag(_ENABLED)
    if enabled is None or not enabled.value:
        draft.idle(enabled, "the default")
        draft.idle(reader.matching("fp8.*"), "settings of what `enabled` switches")
        return
    kept = reader.words(_FILTER)
    if kept is None or list(kept.value) != ["lm_head"]:
        draft.refuse(kept or enabled, "torchao's products in 8 bits of other layers than all but lm_head")
        draft.use(enabled if kept else None)
    else:
        draft.infer(_COMPUTE, "fp8", "linears by torchao", enabled)
        draft.idle(kept, "lm_head stays in 16 bits, as it is counted")
    read_rows(reader, draft, _ROWS)


def read_compile(reader: Reader, draft: Draft) -> None:
    """Reads the block `compile`, which FSDP2 has no use for; other strategies are refused."""
    draft.idle(reader.matching("compile.*"), "under strategy fsdp2 the model is not compiled as a whole "
               "(_transformers/infrastructure.py: compile_model is called for other strategies alone); "
               "distributed.enable_compile compiles layers")


def write_float8(outline: Outline) -> None:
    """Writes the block `fp8` if the scenario's dense layers compute in 8 bits."""
    if outline.value(_COMPUTE) == "fp8":
        outline.put(_ENABLED, True, _COMPUTE)  # noqa: FBT003
        outline.put(_FILTER, ["lm_head"], _COMPUTE)
        write_rows(outline, _ROWS)
