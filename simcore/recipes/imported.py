"""Result of reading a recipe: a scenario, the origin of each of its keys, and what became of the recipe's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from simcore.errors import InputError, NotYet, Problem
from simcore.inputs.block import shorten
from simcore.inputs.document import Document
from simcore.inputs.sweep import split_key
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.recipes.launch.job_option import JobOption

__all__ = ["Decided", "Imported", "Left", "Origin", "Question", "overruled", "read_known", "with_job"]


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
    the answer leaves that out), "default" (the recipe does not say it, and the release's own is simulated), "unknown"
    (left out because --loose was given). `near`: of an unknown key, a known one
    that is spelt almost like it, "" if there is none.
    """

    kind: Literal["no effect", "not modelled", "default", "unknown"]
    where: str
    key: str
    value: str
    why: str
    near: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """A key of the recipe that is read and that no origin names: place, dotted key, value as text.

    `keys`: keys of the scenario that it decides, alone or with others. `why`: what it does where these are none.
    """

    where: str
    key: str
    value: str
    keys: tuple[str, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        if self.keys:
            return f"decides {', '.join(self.keys)}"
        return self.why or "decides how other keys are read, or says what is simulated anyway"


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
    that give it something; `decides`: those of them that no origin names. `questions`: what is open; `unknown`,
    `refused`, `wrong`: problems of keys that nothing knows, of options that are not modelled, of values that the format
    does not take. With any of these the scenario is not complete. `sets_anew`: variables that the program sets for the
    ranks, whatever they are where it is started.
    """

    format: str
    path: str
    values: Mapping[str, Any]
    origins: Mapping[KeyPath, Origin]
    left: tuple[Left, ...] = ()
    used: tuple[str, ...] = ()
    decides: tuple[Decided, ...] = ()
    questions: tuple[Question, ...] = ()
    unknown: tuple[Problem, ...] = ()
    refused: tuple[Problem, ...] = ()
    wrong: tuple[Problem, ...] = ()
    sets_anew: frozenset[str] = frozenset()

    def expect_complete(self) -> None:
        """Raises InputError, or NotYet, with everything for which there is no complete scenario."""
        asked = [Problem(question.where, str(question)) for question in self.questions]
        if problems := [*self.wrong, *self.unknown, *self.refused, *asked]:
            raise (NotYet if len(problems) == len(self.refused) else InputError)(problems)

    def with_settings(self, settings: Mapping[str, Any]) -> Imported:
        """Copy with keys of the scenario that `--set` gives, by dotted key; what they go before is listed."""
        found, document = self, Document(self.path, dict(self.values))
        for key, value in settings.items():
            path, place = split_key(key), f"--set {key}"
            model = found.values.get("model")
            if path == ("model",) and isinstance(model, Mapping) and "config" not in model:
                path = ("model", "config")  # fields that the recipe changes, of whichever model
            found = overruled(found, path, f"{place} goes before it")
            document = document.with_value(path, value, place)
            found = replace(found, origins={**found.origins, path: Origin("asked", place, "")})
        return replace(found, values=document.data)

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


def with_job(imported: Imported, options: Sequence[JobOption]) -> Imported:
    """Copy with the options of `#SBATCH` lines, and of launchers, in lists."""
    sizes = [Decided(one.where, one.name, one.value, why="which ranks there are" if one.launcher else
                     "nodes, tasks or GPUs of the job, which the launch must be of")
             for one in options if one.is_size]
    others = [Left("no effect", one.where, one.name, one.value, f"how {one.launcher} starts ranks, and they meet"
                   if one.launcher else "how the job is queued, and where it writes")
              for one in options if not one.is_size]
    return replace(imported, decides=(*imported.decides, *sizes), left=(*imported.left, *others))


def overruled(imported: Imported, path: KeyPath, why: str) -> Imported:
    """Copy without the origins of a scenario's key, and of keys below it; the recipe's keys that gave them are listed.

    `why`: what goes before them, for those that decide nothing else.
    """
    gone = {other: origin for other, origin in imported.origins.items() if other[:len(path)] == path}
    kept = {other: origin for other, origin in imported.origins.items() if other not in gone}
    still = {(one.where, one.text) for one in kept.values() if one.kind == "recipe"}
    left = [Left("no effect", one.where, one.text, shorten(_value(imported.values, other)), why)
            for other, one in gone.items() if one.kind == "recipe" and (one.where, one.text) not in still]
    names, decides = {dotted(other) for other in gone}, []
    for one in imported.decides:
        rest = tuple(key for key in one.keys if key not in names)
        if one.keys and not rest:
            left.append(Left("no effect", one.where, one.key, one.value, why))
        else:
            decides.append(replace(one, keys=rest))
    return replace(imported, origins=kept, left=(*imported.left, *left), decides=tuple(decides))


def _value(values: Mapping[str, Any], path: KeyPath) -> Any:
    inner: Any = values
    for key in path:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner


def _place(origin: Origin, path: str) -> str:
    return f"{path} (default of {origin.text})" if origin.kind == "default" else origin.where
