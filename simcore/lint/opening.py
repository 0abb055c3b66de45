"""Subjects of the files that a user names; what a recipe leaves open is assumed, so that the rest can be judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm, prod
from typing import Final

from simcore.errors import InputError
from simcore.inputs.loading import settings_of
from simcore.inputs.sweep import members, split_key
from simcore.lint.subject import ASSUMED, SCENARIO, Subject
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.imported import Imported
from simcore.recipes.importing import import_recipe
from simcore.recipes.launch.launch_of import Launch, launch_of
from simcore.recipes.recipe_file import RecipeFile, read_files
from simcore.recipes.registry import format_of, is_scenario

__all__ = ["is_known", "subjects"]

_MOST_GPUS: Final = 4096
_USUAL: Final = 8
"""GPUs of a machine: smaller numbers are tried last."""
_COUNT: Final = f"{ASSUMED}number of GPUs"
_LENGTH: Final = Answer(4096, f"{ASSUMED}length")
_MACHINE: Final = Answer("dgx-h100", f"{ASSUMED}machine")
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
            return [Subject(named, files, None, problems=error.problems)]
        return [_of_recipe(files, answers, named)]
    if named or not is_scenario(document):
        return [_of_recipe(files, answers, named)]
    for key, value in settings_of(overrides).items():
        document = document.with_value(split_key(key), value, f"--set {key}")
    parts = members(document)
    swept, further = len(parts) > 1, max(len(parts) - _MOST_MEMBERS, 0)
    return [Subject(SCENARIO, files, part.document, problems=part.problems, is_swept=swept, num_further=further)
            for part in parts[:_MOST_MEMBERS]]


def is_known(path: str) -> bool:
    """True for a file that is a scenario or a recipe, or that cannot be read."""
    try:
        (file,) = read_files([path])
        return is_scenario(file.document) or format_of([file]) is not None
    except InputError:
        return True


def _is_text_of_values(file: RecipeFile) -> bool:
    return file.path.endswith((".yaml", ".yml", ".json", ".toml"))


def _of_recipe(files: tuple[RecipeFile, ...], answers: Answers, named: str) -> Subject:
    launch = _launch(files)
    started = Answer(launch.gpus.value, launch.gpus.where) if launch and launch.gpus else None
    counts = tuple(count for count in (answers.gpus, started) if count is not None)
    if launch is not None:
        files = (replace(files[0], overrides=launch.overrides), *files[1:])
    try:
        first = _imported(files, answers, named)
    except InputError as error:
        return Subject(named, files, None, counts=counts, problems=error.problems)
    subject = _subject(files, first, answers, counts)
    return subject if not first.questions else _with_assumed(subject, answers, named)


def _imported(files: Sequence[RecipeFile], answers: Answers, named: str) -> Imported:
    return import_recipe([file.path for file in files], answers, named, loose=True).with_settings(answers.settings)


def _subject(files: tuple[RecipeFile, ...], imported: Imported, answers: Answers, counts: tuple[Answer, ...]
             ) -> Subject:
    first = sorted(files, key=lambda file: file.path != imported.path)
    return Subject(imported.format, tuple(first), imported.document(), imported, counts,
                   frozenset(_keys_of_assumed(answers)))


def _keys_of_assumed(answers: Answers) -> Iterator[str]:
    for key, one in (("mesh", answers.gpus), ("training.seq_len", answers.seq_len), ("topology", answers.topology)):
        if one is not None and one.where.startswith(ASSUMED):
            yield key


def _with_assumed(subject: Subject, answers: Answers, named: str) -> Subject:
    """The subject with answers that are assumed; as it was if they do not answer everything."""
    assert subject.imported is not None
    asked = {question.key for question in subject.imported.questions}
    filled = replace(answers, topology=answers.topology or (_MACHINE if "topology" in asked else None),
                     seq_len=answers.seq_len or (_LENGTH if "training.seq_len" in asked else None))
    several = any(key.startswith("mesh") for key in asked)
    tried = [replace(filled, gpus=Answer(number, _COUNT)) for number in _numbers(subject)] if several else [filled]
    refused: list[Subject] = []
    for one in tried:
        imported = _imported(subject.files, one, named)
        if any(problem.where == _COUNT for problem in imported.wrong):
            continue  # the recipe's degrees do not divide it
        found = _subject(subject.files, imported, one, subject.counts)
        if not several or not found.is_refused:
            return found
        refused.append(found)
    refused = [one for one in refused if one.scenario is not None] or refused  # not those that a batch rules out
    common = (frozenset((*one.illegal(), *one.wrong())) for one in refused)
    return replace(refused[0], common=frozenset.intersection(*common)) if refused else subject


def _numbers(subject: Subject) -> list[int]:
    """Numbers of GPUs that are tried, multiples of what the degrees ask for; the first without a problem counts."""
    mesh = subject.says("mesh") or {}
    degrees = {name: size for name, size in mesh.items() if isinstance(size, int) and size > 0}
    stages = degrees.get("pp", 1)
    least = lcm(prod(degrees.get(name, 1) for name in ("pp", "cp", "tp", "dp_replicate")),
                stages * degrees.get("ep", 1))
    found = [least * 2**power for power in range(12) if least * 2**power <= _MOST_GPUS] or [least]
    return sorted(found, key=lambda number: (number < _USUAL, number))


def _launch(files: Sequence[RecipeFile]) -> Launch | None:
    """Launch command behind a recipe; None if there is none, or one that cannot be read, which the import tells."""
    scripts = [file for file in files[1:] if not _is_text_of_values(file)]
    try:
        return launch_of(scripts[0].text, scripts[0].path, files[0].path) if scripts else None
    except InputError:
        return None
