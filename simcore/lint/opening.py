"""Subjects of the files that a user names; what a recipe leaves open is assumed, so that the rest can be judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from simcore.errors import InputError
from simcore.inputs.loading import settings_of
from simcore.inputs.sweep import members
from simcore.lint.subject import SCENARIO, Subject
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.recipes.launch.launch_of import launch_of
from simcore.recipes.recipe_file import RecipeFile, read_files
from simcore.recipes.registry import is_scenario

__all__ = ["subjects"]

_GPUS: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 4, 2, 1)
"""Numbers of GPUs that are tried where nothing says one; the first that has no problem is taken."""
_ASSUMED: Final = "an assumed "
_COUNT: Final = f"{_ASSUMED}number of GPUs"
_LENGTH: Final = Answer(4096, f"{_ASSUMED}length")
_MACHINE: Final = Answer("dgx-h100", f"{_ASSUMED}machine")
_MOST_MEMBERS: Final = 16
"""Scenarios of a sweep that are judged."""


def subjects(paths: Sequence[str], answers: Answers, overrides: Sequence[str] = (), named: str = "") -> list[Subject]:
    """Subjects of the files of one recipe, or of one scenario file: of a sweep its first members.

    `named`: name of the recipe's format; "": it is recognised. `overrides`: texts `key=value` of `--set`. InputError
    for files that cannot be read; for one whose text is no YAML, JSON or TOML the subject has its `problems`.
    """
    files = read_files(paths)
    try:
        document = files[0].document
    except InputError as error:
        if _is_text_of_values(files[0]):
            return [Subject(named or SCENARIO, files, None, problems=error.problems)]
        return [_of_recipe(files, answers, named)]
    if named or not is_scenario(document):
        return [_of_recipe(files, answers, named)]
    for key, value in settings_of(overrides).items():
        document = document.with_value(tuple(key.split(".")), value, f"--set {key}")
    parts = members(document)
    swept = len(parts) > 1
    return [Subject(SCENARIO, files, part.document, problems=part.problems, is_swept=swept)
            for part in parts[:_MOST_MEMBERS]]


def _is_text_of_values(file: RecipeFile) -> bool:
    return file.path.endswith((".yaml", ".yml", ".json", ".toml"))


def _of_recipe(files: tuple[RecipeFile, ...], answers: Answers, named: str) -> Subject:
    gpus = answers.gpus or _started(files)
    try:
        first = _imported(files, answers, named)
    except InputError as error:
        return Subject(named or SCENARIO, files, None, gpus=gpus, problems=error.problems)
    subject = _subject(files, first, answers, gpus)
    return subject if not first.questions else _with_assumed(subject, answers, named)


def _imported(files: Sequence[RecipeFile], answers: Answers, named: str) -> Imported:
    return import_recipe([file.path for file in files], answers, named, loose=True).with_settings(answers.settings)


def _subject(files: tuple[RecipeFile, ...], imported: Imported, answers: Answers, gpus: Answer | None) -> Subject:
    first = sorted(files, key=lambda file: file.path != imported.path)
    assumed = frozenset(_keys_of_assumed(answers))
    return Subject(imported.format, tuple(first), imported.document(), imported, None if "mesh" in assumed else gpus,
                   assumed)


def _keys_of_assumed(answers: Answers) -> Iterator[str]:
    for key, one in (("mesh", answers.gpus), ("training.seq_len", answers.seq_len), ("topology", answers.topology)):
        if one is not None and one.where.startswith(_ASSUMED):
            yield key


def _with_assumed(subject: Subject, answers: Answers, named: str) -> Subject:
    """The subject with answers that are assumed; as it was if they do not answer everything."""
    assert subject.imported is not None
    asked = {question.key for question in subject.imported.questions}
    filled = replace(answers, topology=answers.topology or (_MACHINE if "topology" in asked else None),
                     seq_len=answers.seq_len or (_LENGTH if "training.seq_len" in asked else None))
    several = any(key.startswith("mesh") for key in asked)
    tried = [replace(filled, gpus=Answer(number, _COUNT)) for number in _GPUS] if several else [filled]
    refused: list[Subject] = []
    for one in tried:
        imported = _imported(subject.files, one, named)
        if any(problem.where == _COUNT for problem in imported.wrong):
            continue  # the recipe's degrees do not divide it
        found = _subject(subject.files, imported, one, subject.gpus)
        if not several or not found.is_refused:
            return found
        refused.append(found)
    common = (frozenset((*one.illegal(), *one.wrong())) for one in refused)
    return replace(refused[0], common=frozenset.intersection(*common)) if refused else subject


def _started(files: Sequence[RecipeFile]) -> Answer | None:
    """Number of processes that the launch command behind a recipe starts."""
    scripts = [file for file in files[1:] if not _is_text_of_values(file)]
    try:
        launch = launch_of(scripts[0].text, scripts[0].path, files[0].path) if scripts else None
    except InputError:
        return None
    return Answer(launch.gpus.value, launch.gpus.where) if launch and launch.gpus else None
