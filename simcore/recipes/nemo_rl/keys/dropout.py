"""Dropout of adapters, which both kinds of workers spell alike."""

from __future__ import annotations

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_dropout"]


def read_dropout(reader: Reader, draft: Draft, block: str) -> None:
    """Reads the dropout of the adapters that `block` describes; its place matters with a dropout alone."""
    dropout, place = reader.number(f"{block}.dropout"), reader.text(f"{block}.dropout_position")
    draft.put("training.lora.dropout", dropout)
    if dropout is not None and dropout.value:
        draft.put("training.lora.dropout_position", place)
    else:
        draft.idle(place, "there is no dropout")
