"""A format of recipes: how its files are recognised and read, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simcore.recipes.answers import Answers
from simcore.recipes.imported import Imported
from simcore.recipes.recipe_file import RecipeFile
from simcore.recipes.recipe_writer import RecipeWriter

__all__ = ["Format"]


@dataclass(frozen=True, slots=True)
class Format:
    """One format of recipes; each module or folder beside this one has one as `FORMAT`.

    `name`: as `--from` takes it; `title`: in messages and docs. `recognises`: True for a file that is surely of this
    format, judged by its content alone. `read`: scenario of a recipe's files, the recognised one first; `loose` is
    passed to `Draft.imported`. Raises InputError for a file that cannot be read at all. `writer`: writes such recipes,
    where it is known how. `takes_launcher`: accelerate's YAML stands beside such recipes.
    `repeats`: upstream's reader of YAML in which a key may stand twice, the last counts; "" for one that refuses it.
    `sets_itself`: dotted keys of that YAML which the trainer sets again whatever its launcher said, each with where.
    """

    name: str
    title: str
    recognises: Callable[[RecipeFile], bool]
    read: Callable[[Sequence[RecipeFile], Answers, bool], Imported]
    writer: RecipeWriter | None = None
    takes_launcher: bool = False
    repeats: str = ""
    sets_itself: Mapping[str, str] = field(default_factory=dict)
