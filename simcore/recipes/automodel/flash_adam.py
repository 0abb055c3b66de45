"""FlashOptim's Adam in an Automodel recipe: bits of masters, and switches of its kernels."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, On, Row, Unmodelled, read_rows

__all__ = ["FLASH_ADAM", "names_flash_adam", "read_flash_adam", "write_flash_adam"]

_AT: Final = "optimizer."
FLASH_ADAM: Final = {"flashoptim.FlashAdamW": "adamw", "flashoptim.FlashAdam": "adam"}
_BITS: Final = "framework_options.master_weight_bits"
_ROWS: Final[tuple[Row, ...]] = (
    On(f"{_AT}quantize", "moments of flashoptim that are not in 8 bits"),
    On(f"{_AT}fused", "a step of flashoptim by plain operators"),
    Off(f"{_AT}check_numerics", "flashoptim's check of the steps' sizes"),
    Idle((f"{_AT}compress_state_dict",), "the form of checkpoint files"),
    Idle(tuple(f"{_AT}{name}" for name in ("lr", "betas", "eps", "weight_decay", "decouple_lr")),
         "values, not tensors"),
    Unmodelled((f"{_AT}param_group_overrides.*",), "parameters are updated as one group"))


def names_flash_adam(name: object) -> bool:
    """True for the path of one of FlashOptim's classes that are read."""
    return name in FLASH_ADAM


def read_flash_adam(reader: Reader, draft: Draft) -> None:
    """Reads the block `optimizer` with one of FlashOptim's classes."""
    named, bits = reader.text(f"{_AT}_target_"), reader.integer(f"{_AT}master_weight_bits")
    assert named is not None
    draft.put("training.optimizer.implementation", named, "flashoptim")
    draft.put("training.optimizer.name", named, FLASH_ADAM[named.value])
    if bits is not None and bits.value not in (24, 32):
        draft.use(bits)
        draft.fail(bits.where, f"{bits.key}: Master weight bits {bits.value} invalid; must be one of (None, 24, 32)")
    elif bits is not None:
        draft.put(_BITS, bits)
    read_rows(reader, draft, _ROWS)


def write_flash_adam(outline: Outline) -> None:
    """Writes the class's arguments; its name is written."""
    bits = outline.given(_BITS)
    if bits == 16:
        outline.refuse(_BITS, "null, which is no master, says nothing where recipes are read")
    elif bits is not None:
        outline.put(f"{_AT}master_weight_bits", bits, _BITS)
