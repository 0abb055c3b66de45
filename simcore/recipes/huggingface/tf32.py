"""Argument `tf32` of transformers' Trainer, by which products of fp32 operands alone run on tensor cores in TF32.

transformers 5.23.0 `training_args.py` (enable_tf32), axolotl 067b021c `utils/config/__init__.py` normalize_config set
torch 2.13's `torch.backends.fp32_precision`, which products of 16 bits do not ask. Under autocast operands are cast
before a product, under FSDP's mixed precision and DeepSpeed whole modules are.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_tf32"]

_KEY: Final = "tf32"
_ALL: Final = "products of fp32 run in TF32, at the rate of tensor cores; they are timed at the rate of fp32"
_ADAPTERS: Final = ("products of adapters in fp32, which nothing casts, run in TF32; they are timed as those of the "
                    "base")


def read_tf32(reader: Reader, draft: Draft, *, casts: bool, by_default: bool = False) -> None:
    """Lists `tf32`, once formats are written.

    `casts`: mixed precision casts operands or modules. `by_default`: it is on where the recipe does not say it.
    """
    told, said = _products(draft, casts=casts), reader.take(_KEY)
    if said is None:
        if told and by_default and _KEY not in reader.names():
            draft.unmodelled_default(_KEY, "auto", told)
    elif not told:
        draft.idle(said, f"no product is of fp32, for which alone it is: they are in {_compute(draft)}")
    elif said.value in (False, "false"):
        draft.idle(said, "products of fp32 are timed at the rate of fp32")
    else:
        draft.unmodelled(said, told)


def _products(draft: Draft, *, casts: bool) -> str:
    """Reason for which TF32 changes the time of a step; "" where all products are of 16 bits."""
    training: dict[str, Any] = draft.values.get("training", {})
    if _compute(draft) == "fp32":
        return _ALL
    return _ADAPTERS if training.get("lora", {}).get("dtype") == "fp32" and not casts else ""


def _compute(draft: Draft) -> str:
    return str(draft.values.get("training", {}).get("precision", {}).get("compute", "bf16"))
