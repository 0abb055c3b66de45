"""Options of accelerate's launcher in the file of a TRL recipe, which its parser does not have.

Rule: TRL 1.16.0 `cli/commands/training.py` run: what the parser of `trl sft` does not know it hands to `accelerate
launch`, which stops at an option that it does not know either; `python sft.py --config` passes over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simcore.recipes.answers import Answer
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.fields import fields_of
from simcore.recipes.launch.accelerate import options_of
from simcore.recipes.launch.arguments import Override
from simcore.recipes.launch.trl import is_of_launcher, launcher_file
from simcore.recipes.reader import Reader
from simcore.recipes.shell.pieces import Word

__all__ = ["read_launcher"]

_HANDED_ON: Final = "an option of accelerate's launcher, to which `trl sft` hands it"


def read_launcher(reader: Reader, draft: Draft, beside: Sequence[str]) -> Draft:
    """The draft with options of accelerate's launcher that the recipe's file has; those of the command go before.

    `beside`: names of the files that the user gives with the recipe.
    """
    found = [one for one in reader.all() if len(one.path) == 1 and one.key not in fields_of("trl")
             and is_of_launcher(one.key)]
    if not found:
        return draft
    draft.use(*reader.matching(*(one.key for one in found)), why=_HANDED_ON)
    for one in found:
        name = launcher_file(str(one.value)) if one.key in ("accelerate_config", "config_file") else ""
        if name and Path(name).name not in beside:
            draft.fail(one.where, f"names a further file, {name}: name it beside the recipe")
    options = tuple(option for one in found for option in _options(one.key, one.value, one.where))
    answers = replace(draft.answers, options=(*options, *draft.answers.options))
    count = next((option for option in options if option.path == ("num_processes",)), None)
    if count is not None and isinstance(count.value, int):
        if answers.gpus is not None and answers.gpus.value != count.value:
            draft.fail(count.where, f"num_processes {count.value} contradicts {answers.gpus.where}")
        answers = replace(answers, gpus=answers.gpus or Answer(count.value, count.where))
    return replace(draft, answers=answers)


def _options(name: str, value: Any, where: str) -> tuple[Override, ...]:
    """The option as a key of accelerate's YAML; a switch that is off is none."""
    if value is False or value is None:
        return ()
    words = [Word(f"--{name}", 0), *([] if value is True else [Word(str(value), 0)])]
    return tuple(replace(one, where=where) for one in options_of(words, ""))
