"""Recipes of the files that a user names, and scenario files that are recipes, read on the fly."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.errors import InputError, Problem
from simcore.inputs.block import shorten
from simcore.inputs.document import Document
from simcore.inputs.yaml_parser import dotted
from simcore.recipes.answers import Answer, Answers
from simcore.recipes.format import Format
from simcore.recipes.imported import Imported, Left, read_known, with_job
from simcore.recipes.launch.arguments import Override, unknown_of
from simcore.recipes.model_file import is_of_model, with_model
from simcore.recipes.recipe_file import RecipeFile, read_files
from simcore.recipes.registry import format_named, format_of, is_scenario, known_formats

if TYPE_CHECKING:
    from simcore.recipes.launch.launch_of import Launch

__all__ = ["Opener", "import_files", "import_recipe"]


def import_recipe(paths: Sequence[str], answers: Answers, named: str = "", *, loose: bool = False) -> Imported:
    """Scenario of one recipe, which may have several files.

    `named`: name of its format; "": the format is recognised. InputError for files that cannot be read, are of no known
    format, or that a wrong `named` is given for; what the recipe leaves open or asks for in vain is in the result.
    """
    return import_files(read_files(paths), answers, named, loose=loose)


def import_files(files: Sequence[RecipeFile], answers: Answers, named: str = "", *, loose: bool = False) -> Imported:
    """Scenario of one recipe's files that are read already, as `import_recipe`."""
    _expect_named(answers, [file for file in files if file.mapping() is None])
    files = _with_sources(files)
    found = (format_named(named, f"--from {named}"[:120]), files[0]) if named else format_of(files)
    if found:
        first = found[1]
        for file in files:
            _expect_unique(found[0], file)
        read = _read(found[0], first, [file for file in files if file is not first], answers, loose=loose)
        return replace(read, left=(*read.left, *_set_anew(answers, files), *_repeated(found[0], files)))
    for file in files:
        _ = file.document if _may_be_values(file) else None  # its own mistakes tell more
    names = ", ".join(one.name for one in known_formats())
    raise InputError(Problem(", ".join(file.path for file in files), f"is of no format that is recognised ({names}): "
                                                                     "--from says which it is"))


def _expect_unique(format_: Format, file: RecipeFile) -> None:
    """InputError for keys that stand twice where upstream's reader refuses that."""
    document = file.mapping()
    if document is not None and document.repeated and not format_.repeats:
        raise InputError(document.repeated.values())


def _repeated(format_: Format, files: Sequence[RecipeFile]) -> Iterator[Left]:
    """Keys that stand twice with equal values."""
    for document in filter(None, (file.mapping() for file in files)):
        for path, again in document.repeated.items():
            yield Left("no effect", again.where, dotted(path), "", f"the same again as on line "
                       f"{document.line_of(path)} ({format_.repeats})")


def _read(format_: Format, first: RecipeFile, rest: Sequence[RecipeFile], answers: Answers, *, loose: bool) -> Imported:
    """Reads a recipe; a script or text among `rest` is its launch command, and answers for what it leaves open."""
    configs = [file for file in rest if is_of_model(file)]
    if configs and not is_of_model(first):
        others = [file for file in rest if file is not configs[0]]
        return with_model(configs[0], lambda given: _read(format_, first, others, given, loose=loose), answers)
    scripts = [file for file in rest if not _may_be_values(file) and file.mapping() is None]
    if not scripts:
        return format_.read([first, *rest], answers, loose)
    if len(scripts) > 1:
        raise InputError(Problem(scripts[1].path, f"is a second launch command beside {scripts[0].path}: give one"))
    from simcore.recipes.environment import (
        with_environment,  # scenarios, which most files are, need no reader of scripts
    )
    from simcore.recipes.launch.launch_of import launch_of

    launch = launch_of(scripts[0].text, scripts[0].path, first.path, answers.variables, scripts[0].sources)
    rest = [file for file in rest if file is not scripts[0]]
    further, where = launch.further
    if further and Path(further).name not in {Path(file.path).name for file in rest}:
        raise InputError(Problem(where, f"names a further file, {further}: name it beside the recipe"))
    if launch.overrides and first.mapping() is None:
        raise InputError(Problem(launch.overrides[0].where, f"sets a key of {first.path}, which has no keys"))
    told = Answer(launch.gpus.value, launch.gpus.where) if launch.gpus else None
    if told and answers.gpus and told.value != answers.gpus.value:
        raise InputError(Problem(told.where, f"starts {told.value} processes, which contradicts {answers.gpus.where}"))
    answers = replace(answers, gpus=answers.gpus or told, launcher=launch.kind, program=launch.program,
                      exported=launch.variables, options=launch.options)
    told_by_launcher = _read_options(format_, launch)
    overrides = (*first.overrides, *launch.overrides)
    imported = read_known(lambda: format_.read([replace(first, overrides=overrides), *rest], answers, loose),
                          unknown_of(launch.overrides))
    imported = replace(imported, left=(*imported.left, *told_by_launcher,
                                           *_overridden(first, launch.overrides)))
    return with_job(with_environment(imported, launch.environment), launch.job)


def _overridden(file: RecipeFile, overrides: Sequence[Override]) -> Iterator[Left]:
    """Values of the recipe that its launch command sets anew, each with the place that does."""
    document = file.document
    for one in {one.path: one for one in overrides}.values():
        value: object = document.data
        for key in one.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            yield Left("no effect", document.where(one.path), dotted(one.path), shorten(value), f"{one.where} sets it")


@dataclass(frozen=True, slots=True)
class Opener:
    """Reads files for `inputs.loading.read`: a scenario as it is, a recipe as the scenario that it is imported as.

    `beside`: files that belong to each recipe, such as its launch script. `loose`: as `import_recipe` has it. `expect`:
    raises what keeps a recipe from being a scenario.
    """

    answers: Answers
    imported: Callable[[Imported], object]
    """Called with each recipe that was imported, with what `--set` changes in it."""
    beside: tuple[str, ...] = ()
    loose: bool = False
    expect: Callable[[Imported], None] = Imported.expect_complete

    def __call__(self, path: str | os.PathLike[str]) -> Document:
        """Document of a scenario; InputError as `import_recipe`, and as `expect` for a recipe."""
        file = read_files([os.fspath(path)])[0]
        document = file.mapping()
        is_own = _may_be_values(file) if document is None else is_scenario(document)  # or has a mistake of its own
        if is_own or format_of([file]) is None:
            return file.document
        imported = import_recipe([file.path, *self.beside], self.answers, loose=self.loose)
        self.expect(imported)
        self.imported(imported.with_settings(self.answers.settings))  # the document gets them where all do
        return imported.document()


def _with_sources(files: Sequence[RecipeFile]) -> Sequence[RecipeFile]:
    """Files without those that a script among them sources, which that script has instead."""
    scripts = [file for file in files if not _may_be_values(file) and file.mapping() is None]
    sourced = [file for file in scripts if any(_may_source(other, file) for other in scripts if other is not file)]
    names = [Path(file.path).name for file in sourced]
    if len(set(names)) < len(names):
        raise InputError(Problem(sourced[-1].path, f"one of two files that are sourced as {names[-1]}: give one"))
    sources = {name: file.text for name, file in zip(names, sourced, strict=True)}
    return [replace(file, sources=sources) if file in scripts else file for file in files if file not in sourced]


def _may_source(script: RecipeFile, file: RecipeFile) -> bool:
    """True for a script that names the file, and sources one."""
    return Path(file.path).name in script.text and bool(re.search(r"(?:^|[\s;&|({])(?:source|\.)\s+\S", script.text))


def _read_options(format_: Format, launch: Launch) -> tuple[Left, ...]:
    """Options of `accelerate launch` beside a recipe that takes none, which do nothing; InputError for others."""
    from simcore.recipes.launch.accelerate import beyond_ranks, expect_known

    expect_known(launch.options)
    told: list[Left] = []
    problems: list[Problem] = []
    for one in () if format_.takes_launcher else beyond_ranks(launch.options):
        key = dotted(one.path)
        compiles_not = key == "dynamo_config.dynamo_backend" and str(one.value).lower() == "no"
        why = "nothing is compiled, as without it" if compiles_not else format_.sets_itself.get(key, "")
        if why:
            told.append(Left("no effect", one.where, key, shorten(one.value), why))
        else:
            problems.append(Problem(one.where, "not yet: an option of accelerate beside a recipe of "
                                               f"{format_.title}: {key}"))
    if problems:
        raise InputError(problems)
    return tuple(told)


def _expect_named(answers: Answers, scripts: Sequence[RecipeFile]) -> None:
    """InputError for a variable of the environment that no script names."""
    for name in answers.variables:
        if not any(re.search(rf"\b{re.escape(name)}\b", file.text) for file in scripts):
            raise InputError(Problem(f"--set env.{name}"[:120], "no script of the recipe names this variable"))


def _set_anew(answers: Answers, files: Sequence[RecipeFile]) -> Iterator[Left]:
    """Variables of `--set env` that a script sets before it reads them, by itself."""
    for name, value in answers.variables.items():
        for file in files:
            said = None if _may_be_values(file) else re.search(rf"\b{re.escape(name)}\b.*", file.text)
            if said and re.match(rf"{re.escape(name)}=(?!.*\b{re.escape(name)}\b)", said[0]) and re.search(
                    r"(?:^|export\s+)[ \t]*$", file.text[:said.start()].rpartition("\n")[2]):
                line = file.text.count("\n", 0, said.start()) + 1
                yield Left("no effect", f"--set env.{name}", f"env.{name}", value, f"{file.path}:{line} sets it anew")


def _may_be_values(file: RecipeFile) -> bool:
    return Path(file.path).suffix in (".yaml", ".yml", ".json", ".toml")
