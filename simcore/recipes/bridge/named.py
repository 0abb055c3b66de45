"""Recipes of Megatron-Bridge by name: the table of their values, and the launch lines that name one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import Document
from simcore.recipes.answers import Answer
from simcore.recipes.bridge.launched import (
    aligned,
    changed,
    data_owns,
    launched,
    reads_mock_samples,
    without_data,
)
from simcore.recipes.bridge.layouts import BUILDER, laid_out
from simcore.recipes.bridge.options import UNNAMED, Launcher
from simcore.recipes.bridge.selection import selected
from simcore.recipes.bridge.vocabulary import without_computed
from simcore.recipes.bridge.words import asked_of, program_of
from simcore.recipes.imported import Left
from simcore.recipes.launch.job_option import JobOption
from simcore.recipes.launch.launch_of import environment_of
from simcore.recipes.launch.slurm import job_of, options_of_launchers, read_job
from simcore.recipes.launch.starters import starters_of
from simcore.recipes.megatron.launch import agreed, gpus_of
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.script import Script, Started

__all__ = ["COMMIT", "Launch", "is_benchmark", "launch_of", "names_in", "present_name", "recipes"]

COMMIT: Final = "067f987d"
_NAME: Final = re.compile(r"\b[a-z][a-z0-9_]+_config(?:_[a-z0-9_]+)?\b")


@lru_cache
def _table() -> Mapping[str, Any]:
    text = resources.files("simcore.recipes.bridge").joinpath("recipes.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


@lru_cache
def recipes() -> Mapping[str, Mapping[str, Any]]:
    """Values of every recipe by its name, as Bridge's launchers change those of benchmarks (`launched`)."""
    return MappingProxyType({name: MappingProxyType(launched(name, values)) if is_benchmark(name) else values
                             for name, values in _own().items()})


@lru_cache
def _own() -> Mapping[str, Mapping[str, Any]]:
    """Values that every recipe sets: a value by dotted key; "?" names keys whose values are not known.

    Of a name that is a benchmark's and the library's too it is the benchmark (scripts/training/recipe_metadata.py,
    BENCHMARK_RECIPE_PRECEDENCE_COLLISIONS).
    """
    values = _table()["values"]
    found = {name: {**dict(values[number] for number in row["has"]), **({"?": row["?"]} if "?" in row else {})}
             for name, row in _rows().items() if not isinstance(row, str)}
    return MappingProxyType({name: MappingProxyType(found[row if isinstance(row, str) else name])
                             for name, row in _rows().items()})


def present_name(name: str) -> str:
    """Name of a recipe that an older name stands for; another name as it is."""
    row = _rows()[name]
    return row if isinstance(row, str) else str(row.get("name", name))


def is_benchmark(name: str) -> bool:
    """True for a recipe that Bridge's launchers take for a benchmark on the GPUs of its name."""
    row = _rows()[name]
    return not isinstance(row, str) and bool(row.get("benchmark"))


def _rows() -> Mapping[str, Any]:
    """Rows of the table by name: numbers of values (`has`), or, of an older name, the present one."""
    rows: Mapping[str, Any] = _table()["recipes"]
    return rows


def names_in(text: str) -> list[str]:
    """Names of recipes in a text, in order."""
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name in recipes()]


class Launch:
    """A launch of a recipe by name: `name`, its values as a `document`, and what it leaves unknown (`open_keys`).

    `gpus`: processes that torchrun, srun or mpirun starts, None where none is there; `environment`: variables of the
    script that change memory, with their places; `left`: options, and keys, of the launch that give nothing;
    `unknown`: problems of values that are not known, by their keys; `job`: options of `#SBATCH` lines; `launcher`:
    the one of Bridge's that it names, if any; `mocks`: place of Bridge's launcher that replaces its data set, "".
    """

    def __init__(self, name: str, document: Document, open_keys: tuple[str, ...], gpus: Answer | None,
                 environment: tuple[tuple[str, str, str], ...], overridden: frozenset[str],
                 left: tuple[Left, ...] = (), unknown: Mapping[str, Problem] | None = None,
                 job: tuple[JobOption, ...] = (), *,
                 launcher: Launcher = UNNAMED, mocks: str = "") -> None:
        self.name, self.document, self.open_keys = name, document, open_keys
        self.gpus, self.environment, self._overridden, self.left = gpus, environment, overridden, left
        self.launcher: Launcher = launcher
        self.mocks = mocks
        self.unknown, self.job = unknown or {}, job

    @property
    def data_owns(self) -> bool:
        """True if the data set says the length of the model, too."""
        return data_owns(self.launcher, self._overridden, benchmark=is_benchmark(self.name))

    @property
    def given(self) -> frozenset[str]:
        """Dotted keys that the launch itself gives."""
        return self._overridden

    def gives(self, key: str) -> bool:
        """True if the launch itself gives the key, or the block that it stands in."""
        return bool({key, key.split(".", maxsplit=1)[0]} & self._overridden)


def launch_of(text: str, path: str, variables: Mapping[str, str] | None = None,
              beside: Mapping[str, str] | None = None) -> Launch:
    """Launch that a script, or a line, asks for; `beside`: texts of files that it sources.

    InputError if it names several recipes, or an option is not read.
    """
    script = read_job(text, path, variables, beside)
    command, (name, number) = _command(script, path)
    words = list(command.words)
    place, values, is_timed = f"{path}:{words[number].line} {name}", _own()[name], is_benchmark(name)
    start = program_of(words, number)
    asked = asked_of(words, start, path, name, values)
    mocks = is_timed and reads_mock_samples(name, asked.launcher)
    overrides, replaced = without_data(asked.overrides) if mocks and asked.launcher.rebuilds else (
        asked.overrides, [])
    replaces = f"{path}: Bridge's launcher ({asked.launcher.mocks_at})"
    document = _document(path, place, values, replaces if mocks else "")
    document = document.with_values((tuple(key.split(".")), value, where)
                                    for key, value, where in (*asked.base, *overrides))
    open_keys = tuple(key for key in values.get("?", ()) if key not in {one for one, _, _ in asked.overrides})
    given = frozenset(key for key, _, _ in asked.overrides)
    document = laid_out(document, name, asked.launcher, given, computed=BUILDER in open_keys)
    document, after = changed(document, name, asked.launcher, given, benchmark=is_timed)
    document, left = aligned(document, asked.launcher, given, benchmark=is_timed)
    document, of_model, open_keys = without_computed(document, open_keys)
    return Launch(name, document, open_keys, agreed(asked.gpus, gpus_of(command, script, path)),
                  (*environment_of(script, text, path), *asked.environment), given,
                  (*asked.left, *replaced, *after, *left, *of_model), asked.unknown,
                  (*job_of(script.sbatch, path), *options_of_launchers(starters_of([*command.around, *words]), path)),
                  launcher=asked.launcher, mocks=asked.launcher.mocks_at if mocks else "")


def _document(path: str, place: str, values: Mapping[str, Any], mocks: str) -> Document:
    """Document of a recipe's own values; `mocks`: place at which its data set is replaced by mock samples, "" for none.

    `place`: that of the recipe's name.
    """
    document = Document(path, {}, places={(): place}).with_values(
        (tuple(key.split(".")), value, place) for key, value in values.items()
        if key != "?" and not (mocks and key.startswith("dataset.")))
    length = values.get("model.seq_length", 4096)
    return document.with_value(("dataset", "seq_length"), length, mocks) if mocks else document


def _command(script: Script, path: str) -> tuple[Started, tuple[str, int]]:
    """Command that names a recipe, the recipe, and the number of the word that does."""
    found = [(one, which) for one in script.commands if (which := _named(one.words, path))]
    if len({one.line for one, _ in found}) != 1:  # those of a loop are told below
        open_name = next((word for one in script.commands for before, word in pairwise(one.words)
                          if before.text == "--recipe" and word.unknown), None)
        if open_name is not None and not found:
            raise InputError(Problem(f"{path}:{open_name.line}", f"--recipe: its value depends on {open_name.unknown}"))
        raise InputError(Problem(path, f"expected one command with the name of a recipe, got {len(found)}"))
    command = found[0][0]
    if command.within:
        raise InputError(Problem(f"{path}:{command.line}", f"the launch command lies in {command.within}: give one "
                                                           "command"))
    return found[0]


def _named(words: Sequence[Word], path: str) -> tuple[str, int] | None:
    """Recipe that a command names, and the number of the word that does; None for another command."""
    for number, word in enumerate(words):
        if found := names_in(word.text):
            return found[0], number
    return selected(words, path, recipes())
