"""Hugging Face's `config.json` beside a recipe: the model of the recipe, whatever name it has there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from simcore.errors import InputError, Problem
from simcore.models.graph import model_config
from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported, Origin
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["is_of_model", "problems_of_model", "with_model"]

_TELLING: Final = frozenset({"architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "n_embd",
                             "d_model", "text_config"})
"""Keys of configurations, one of which stands beside `model_type`."""


def is_of_model(file: RecipeFile) -> bool:
    """True for the `config.json` of a model of transformers."""
    document = file.mapping()
    return (document is not None and isinstance(document.data.get("model_type"), str)
            and not _TELLING.isdisjoint(document.data))


def problems_of_model(imported: Imported) -> tuple[Problem, ...]:
    """Problems of a recipe's model that is named and not known; () of a model that is described, or in a file."""
    name = imported.values.get("model")
    if not isinstance(name, str) or name.endswith(".json"):
        return ()
    origin = imported.origins.get(("model",))
    try:
        model_config(name, None, origin.where if origin else imported.path)
    except InputError as error:
        return error.problems
    return ()


def with_model(config: RecipeFile, read: Callable[[Answers], Imported], answers: Answers) -> Imported:
    """Recipe that `read` reads, with the model of `config`; its path is relative to the recipe's folder.

    InputError for a recipe that says its model in another way than by a name, and for an answer with another model.
    """
    if "model" in answers.settings:
        raise InputError(Problem(config.path, "a model beside the recipe, and --set model says another"))
    imported = read(replace(answers, settings={**answers.settings, "model": config.path}))
    said = next((str(origin) for path, origin in imported.origins.items() if path[0] == "model"), "")
    if said:
        raise InputError(Problem(config.path, f"a model beside a recipe that says its model itself: {said}"))
    path = os.path.relpath(config.path, Path(imported.path).parent)
    return replace(imported, values={**imported.values, "model": path},
                   origins={**imported.origins, ("model",): Origin("recipe", config.path, "the configuration")})
