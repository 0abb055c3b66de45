"""All formats of recipes, and which of them a file is of."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.recipes.format import Format
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["format_named", "format_of", "is_scenario", "known_formats"]

_MODULES: Final = ("automodel.recipe", "axolotl.recipe", "llamafactory.recipe", "trl.recipe", "alone.accelerate",
                   "alone.deepspeed", "bridge.recipe", "megatron.recipe", "torchtitan.recipe", "nemo_rl.recipe",
                   "verl.recipe", "openrlhf.recipe", "alone.model")
"""Modules of this package, each with a `FORMAT`; the first that recognises a file reads it. The model's is the last: it
stands beside others."""
_OF_SCENARIOS: Final = frozenset({"topology", "framework", "workload", "sweep"})
"""Top-level keys that scenarios have, and no recipe of another tool."""


@lru_cache
def known_formats() -> tuple[Format, ...]:
    """All formats, in the order in which they are asked."""
    return tuple(importlib.import_module(f"simcore.recipes.{name}").FORMAT for name in _MODULES)


def format_named(name: str, where: str) -> Format:
    """Format with a name; InputError at `where` for another name."""
    by_name = {one.name: one for one in known_formats()}
    if name not in by_name:
        raise InputError(Problem(where, f"expected one of {', '.join(by_name)}, got {name!r}"))
    return by_name[name]


def format_of(files: Sequence[RecipeFile]) -> tuple[Format, RecipeFile] | None:
    """Format of a recipe, and the file by which it was recognised; None if no format recognises any of its files."""
    found = ((one, file) for one in known_formats() for file in files
             if one.recognises(replace(file, text="\n".join((file.text, *file.sources.values())))
                               if file.sources else file))
    return next(found, None)


def is_scenario(document: Document) -> bool:
    """True for a scenario of rankscope's own, so that no format is asked."""
    return not _OF_SCENARIOS.isdisjoint(document.data)
