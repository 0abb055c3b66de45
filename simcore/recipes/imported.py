"""Result of reading a recipe: a scenario, the origin of each of its keys, and what became of the recipe's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from simcore.errors import InputError, NotYet, Problem
from simcore.inputs.document import Document
from simcore.inputs.sweep import split_key
from simcore.inputs.yaml_parser import KeyPath

__all__ = ["Imported", "Left", "Origin", "Question", "read_known"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of one key of the scenario.

    `kind`: "recipe" (it stands there), "default" (of the release that is simulated), "asked" (the user answered),
    "inferred" (follows from other keys by a rule). `where`: `file:line` of what it comes from, or the option that
    answered. `text`: the recipe's key, the release, or the rule; `source`: upstream file of a default or rule.
    """

    kind: Literal["recipe", "default", "asked", "inferred"]
    where: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        if self.kind == "recipe":
            return f"{self.where} {self.text}{source}"
        if self.kind == "asked":
            return f"{self.where}{source}"
        head = f"default of {self.text}" if self.kind == "default" else f"{self.where}: {self.text}"
        return f"{head}{source}"


@dataclass(frozen=True, slots=True)
class Left:
    """A key of the recipe that gives the scenario nothing: place, dotted key, value as text, and the reason.

    `kind`: "no effect" (nothing that is simulated depends on it), "not modelled" (it changes what upstream does, and
    the answer leaves that out), "unknown" (left out because --loose was given). `near`: of an unknown key, a known one
    that is spelt almost like it, "" if there is none.
    """

    kind: Literal["no effect", "not modelled", "unknown"]
    where: str
    key: str
    value: str
    why: str
    near: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the recipe leaves open and the user must say: `key` of the scenario, `option` that answers it."""

    key: str
    option: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"the recipe leaves open: {self.text}; answer with {self.option}"


@dataclass(frozen=True, slots=True)
class Imported:
    """A recipe as a scenario.

    `format`: name of the recipe's format; `path`: its first file. `values`: the scenario, as `parse_scenario` takes it;
    `origins`: by path of each key in it. `left`: keys of the recipe that give it nothing; `used`: dotted keys of those
    that give it something. `questions`: what is open; `unknown`, `refused`, `wrong`: problems of keys that nothing
    knows, of options that are not modelled, of values that the format does not take. With any of these the scenario is
    not complete.
    """

    format: str
    path: str
    values: Mapping[str, Any]
    origins: Mapping[KeyPath, Origin]
    left: tuple[Left, ...] = ()
    used: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()
    unknown: tuple[Problem, ...] = ()
    refused: tuple[Problem, ...] = ()
    wrong: tuple[Problem, ...] = ()

    def expect_complete(self) -> None:
        """Raises InputError, or NotYet, with everything for which there is no complete scenario."""
        asked = [Problem(question.where, str(question)) for question in self.questions]
        if problems := [*self.wrong, *self.unknown, *self.refused, *asked]:
            raise (NotYet if len(problems) == len(self.refused) else InputError)(problems)

    def with_settings(self, settings: Mapping[str, Any]) -> Imported:
        """Copy with keys of the scenario that `--set` gives, by dotted key."""
        document, origins = Document(self.path, dict(self.values)), dict(self.origins)
        for key, value in settings.items():
            path = split_key(key)
            document = document.with_value(path, value, f"--set {key}")
            origins = {other: origin for other, origin in origins.items() if other[:len(path)] != path}
            origins[path] = Origin("asked", f"--set {key}", "")
        return replace(self, values=document.data, origins=origins)

    def document(self) -> Document:
        """Document of the scenario, in which each key's place is the line of the recipe that it comes from."""
        return Document(self.path, dict(self.values),
                        places={path: _place(origin, self.path) for path, origin in self.origins.items()})


def read_known(read: Callable[[], Imported], unknown: Mapping[str, Problem]) -> Imported:
    """Recipe that `read` gives. InputError for a value that is not known, unless nothing depends on its key.

    `unknown`: problem of each such value by its dotted key.
    """
    try:
        imported = read()
    except InputError:
        if unknown:
            raise InputError(tuple(unknown.values())) from None
        raise
    idle = {one.key for one in imported.left if one.kind == "no effect"}
    if problems := [problem for key, problem in unknown.items() if key not in idle]:
        raise InputError(problems)
    return imported


def _place(origin: Origin, path: str) -> str:
    return f"{path} (default of {origin.text})" if origin.kind == "default" else origin.where
