"""Launch scripts that are the recipe themselves: arguments of the training in place of a YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.imported import Imported, read_known
from simcore.recipes.launch.arguments import unknown_of
from simcore.recipes.launch.job_option import JobOption
from simcore.recipes.launch.launch_of import launch_of
from simcore.recipes.recipe_file import RecipeFile

__all__ = ["Script", "names_model", "read_started"]

_NAMED: Final = "--model_name_or_path"
_MOST: Final = 2**16
"""Characters of a text that is looked at."""


@dataclass(frozen=True, slots=True)
class Script:
    """Arguments of a script as a document, answers with its number of GPUs, variables of it that change memory.

    `unknown`: problems of values that are not known, by their keys; `job`: options of `#SBATCH` lines.
    """

    document: Document
    answers: Answers
    environment: tuple[tuple[str, str, str], ...] = ()
    unknown: Mapping[str, Problem] = field(default_factory=dict)
    job: tuple[JobOption, ...] = ()


def names_model(file: RecipeFile) -> bool:
    """True for a text, of no more than is looked at, in which an argument of transformers' trainers names the model."""
    return len(file.text) < _MOST and _NAMED in file.text


def read_started(file: RecipeFile, answers: Answers, read: Callable[[Script], Imported]) -> Imported:
    """Recipe that `read` makes of a file of arguments, or of a script's; InputError as `read_known`."""
    script = _of_launch(file, answers) if file.mapping() is None else Script(file.document, answers)
    return read_known(lambda: read(script), script.unknown)


def _of_launch(file: RecipeFile, answers: Answers) -> Script:
    """Script by its text; InputError as `launch_of`, and for a number of GPUs that contradicts the answer."""
    launch = launch_of(file.text, file.path, file.path, answers.variables, file.sources)
    document = Document(file.path, {})
    for one in launch.overrides:
        document = document.with_value(one.path, one.value, one.where)
    said = Answer(launch.gpus.value, launch.gpus.where) if launch.gpus else None
    if said and answers.gpus and said.value != answers.gpus.value:
        raise InputError(Problem(said.where, f"starts {said.value} processes, which contradicts {answers.gpus.where}"))
    told = replace(answers, gpus=answers.gpus or said, launcher=launch.kind, program=launch.program,
                   exported=launch.variables, options=launch.options)
    return Script(document, told, launch.environment, unknown_of(launch.overrides), launch.job)
