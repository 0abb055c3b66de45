"""Muon of the `dion` package in an Automodel recipe: its settings, and those of its groups of parameters."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.outline import Outline
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Row, Says, read_rows

__all__ = ["DION_MUON", "names_dion", "read_dion", "write_dion"]

_AT: Final = "optimizer."
DION_MUON: Final = "dion.Muon"
_AHEAD: Final = "framework_options.nesterov"
_ROWS: Final[tuple[Row, ...]] = (
    Says(f"{_AT}nesterov", _AHEAD, "flag"),
    Says(f"{_AT}scalar_opt", "", "text", idle={"adamw": "the default"}, words={None: None},
         what="vectors, embedding and head updated by"),
    Off(f"{_AT}use_triton", "a kernel of Triton"),
    Idle((f"{_AT}flatten",), "of tensors of three dimensions, which are AdamW's"),
    Idle((f"{_AT}param_group_overrides.*",), "ignored: components/optim/optimizer.py, _DionConfigBase.build"),
    Idle(tuple(f"{_AT}{name}" for name in (
        "lr", "mu", "betas", "epsilon", "weight_decay", "adjust_lr", "scalar_betas", "scalar_eps", "scalar_lr",
        "embed_lr", "lm_head_lr")), "values, not tensors"))


def names_dion(name: object) -> bool:
    """True for the path of the package's class that is read."""
    return name == DION_MUON


def read_dion(reader: Reader, draft: Draft) -> None:
    """Reads the block `optimizer` with the package's Muon."""
    named = reader.text(f"{_AT}_target_")
    assert named is not None
    draft.put("training.optimizer.implementation", named, "dion")
    draft.put("training.optimizer.name", named, "muon")
    read_rows(reader, draft, _ROWS)


def write_dion(outline: Outline) -> None:
    """Writes the class's arguments; its name is written."""
    ahead = outline.given(_AHEAD)
    if ahead is not None:
        outline.put(f"{_AT}nesterov", ahead, _AHEAD)
