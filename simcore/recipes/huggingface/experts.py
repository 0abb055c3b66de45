"""Mixtures of experts of the model that a recipe names."""

from __future__ import annotations

from simcore.errors import InputError
from simcore.models.blocks import Moe
from simcore.models.graph import architecture_of, model_config
from simcore.recipes.draft import Draft

__all__ = ["experts_of"]


def experts_of(draft: Draft) -> list[Moe] | None:
    """Mixtures of experts of the draft's model, none in a dense one; None for a model that is not known."""
    model = draft.answers.settings.get("model", draft.values.get("model"))
    block = model if isinstance(model, dict) else {"config": model}
    try:
        fields = model_config(str(block.get("config")), block.get("overrides"), "")
        parts = architecture_of(fields).parts
    except InputError:
        return None
    return [branch.block for _, kind in parts for branch in kind.branches if isinstance(branch.block, Moe)]
