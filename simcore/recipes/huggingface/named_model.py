"""The model of a recipe that names it by one key."""

from __future__ import annotations

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_named_model"]


def read_named_model(reader: Reader, draft: Draft, key: str) -> None:
    """Writes the model that `key` names, unless `--set model` answers; asks for it where the recipe names none."""
    named = reader.text(key)
    if (given := draft.answers.settings.get("model")) is not None:
        draft.idle(named, f"the model is given as {given}")
    elif named is None:
        draft.ask("model", "--set model=NAME or PATH of its config.json", f"model ({key})")
    else:
        draft.put("model", named)
