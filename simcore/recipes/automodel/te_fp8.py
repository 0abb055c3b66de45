"""`model.backend.te_fp8` of an Automodel recipe: products in 8 bits, and which of them are TransformerEngine's."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Says, read_rows, write_rows

__all__ = ["is_fp8", "read_te_fp8", "write_te_fp8"]

_BLOCK: Final = "model.backend.te_fp8"
_COMPUTE: Final = "training.precision.compute"
_ROWS: Final = (
    Says(f"{_BLOCK}.recipe", "framework_options.te_fp8", "text", {name: name for name in ("current", "block", "mxfp8")},
         what="a recipe of TransformerEngine"),
    Says("model.backend.linear", "framework_options.backend.linear", "text", {"te": "te", "torch": "torch"},
         what="linear by"),
    Says("model.backend.experts", "framework_options.backend.experts", "text", {
        "torch_mm": "torch_mm", "te": "te", "gmm": "torch_mm"}, what="products of experts by"),
)


def read_te_fp8(reader: Reader, draft: Draft) -> bool:
    """Reads the block and the backends `linear` and `experts`, on which it depends; False if there is no such block."""
    if not reader.is_mapping(_BLOCK):
        draft.refuse(reader.take(_BLOCK), "products in 8 bits by a value that is no mapping")
        return False
    read_rows(reader, draft, _ROWS)
    said = None if draft.refuses(f"{_BLOCK}.recipe") else reader.text(f"{_BLOCK}.recipe")
    draft.infer(_COMPUTE, "fp8", f"the recipe has a block {_BLOCK}", reader.text(f"{_BLOCK}._target_"), said)
    return True


def is_fp8(draft: Draft) -> bool:
    """True if the recipe has said that products are in 8 bits."""
    return bool(draft.values.get("training", {}).get("precision", {}).get("compute") == "fp8")


def write_te_fp8(outline: Outline) -> None:
    """Writes the block if the scenario computes in 8 bits, with the recipe that is run."""
    if outline.value(_COMPUTE) != "fp8":
        return
    recipe = outline.given("framework_options.te_fp8") or "current"
    outline.put(f"{_BLOCK}.recipe", recipe, _COMPUTE, "framework_options.te_fp8")
    write_rows(outline, [row for row in _ROWS if row.key not in outline.puts])
