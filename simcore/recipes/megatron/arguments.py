"""Arguments of Megatron-LM's training scripts: the table of all of them, and words of a command as their values.

`arguments.json` has one row an argument, made by `tests/truth/list_megatron_arguments.py` from the sources of core
0.16.1 and of main of 2026-08-22 (d98e8a64): what it takes, default, and where they say anything version and field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from simcore.errors import Problem
from simcore.inputs.document import Document
from simcore.recipes.draft import Draft
from simcore.recipes.megatron.fields import Setting
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.shell.pieces import Word

__all__ = ["Argument", "ArgumentFields", "Given", "arguments", "given", "given_by", "names_of"]

MAIN: Final = "main 2026-08-22"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument: the field that it sets, what it takes ("true", "false" of a switch; "int", "text+", ...), default.

    `version`: the one version that has it, "" if both have it.
    """

    field: str
    takes: str
    default: Any
    version: str

    @property
    def is_switch(self) -> bool:
        """True if no value follows it."""
        return self.takes in ("true", "false")


@lru_cache
def arguments() -> Mapping[str, Argument]:
    """Every argument by its name, such as `--num-layers`."""
    text = resources.files("simcore.recipes.megatron").joinpath("arguments.json").read_text(encoding="utf-8")
    return MappingProxyType({name: _argument(name, *row) for name, row in json.loads(text).items()})


def _argument(name: str, takes: str, default: Any, version: str = "", field: str = "") -> Argument:
    """A row of the table: most arguments set the field of their name."""
    return Argument(field or name.removeprefix("--").replace("-", "_"), takes, default, version)


@lru_cache
def _names_of() -> Mapping[str, tuple[str, ...]]:
    """Names of the arguments that set a field."""
    found: dict[str, list[str]] = {}
    for name, argument in arguments().items():
        found.setdefault(argument.field, []).append(name)
    return {one: tuple(names) for one, names in found.items()}


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments as a recipe gives them, in `document`.

    `keys`: dotted key in the document by the argument's name; `unknown`: reasons why the values of some are not known.
    """

    document: Document
    keys: Mapping[str, str]
    unknown: Mapping[str, str]
    problems: tuple[Problem, ...] = ()


def given(words: Sequence[Word], path: str) -> Given:
    """Arguments of a command's words; of one that stands there twice the last counts, as in argparse."""
    values, places = dict[str, Any](), dict[tuple[str | int, ...], str]()
    unknown, problems, at = dict[str, str](), list[Problem](), 0
    while at < len(words):
        word, at = words[at], at + 1
        where = f"{path}:{word.line}"
        if not word.text.startswith("--") or word.text == "--":
            if word.may_hold:
                problems.append(Problem(where, f"{word.text[:60]} may hold arguments: {word.unknown}"))
            elif not word.unknown and word.text != "--":
                problems.append(Problem(where, f"unrecognized argument {word.text[:60]!r}"))
            continue
        name, has_value, value = word.text.partition("=")
        argument = arguments().get(name)
        taken = [] if has_value or (argument and argument.is_switch) else _values(words[at:], argument)
        at += len(taken)
        reasons = [one.unknown for one in (word, *taken) if one.unknown]
        values[name] = _value(argument, [value] if has_value else [one.text for one in taken])
        places[name,] = where
        unknown.pop(name, "")
        if reasons:
            unknown[name] = reasons[0]
        elif argument and values[name] is None:
            problems.append(Problem(where, f"{name}: expected a value"))
    return Given(Document(path, values, places=places), {name: name for name in values}, unknown, tuple(problems))


def _values(words: Sequence[Word], argument: Argument | None) -> list[Word]:
    """Words that belong to an argument: one, or all up to the next argument."""
    found: list[Word] = []
    for word in words:
        is_whole = word.unknown and word.text[:1] in ("$", "`")
        if word.text.startswith("--") or (is_whole and found and (not argument or argument.takes.endswith("+"))):
            break
        found.append(word)
        if argument and not argument.takes.endswith("+"):
            break
    return found


def _value(argument: Argument | None, texts: list[str]) -> Any:
    if argument is None:
        return True if not texts else texts[0] if len(texts) == 1 else texts
    if argument.is_switch:
        return not texts or " ".join(texts)
    if argument.takes.endswith("+"):
        return texts or None
    return texts[0] if texts else None


def given_by(document: Document, key: str) -> Given:
    """Arguments of a mapping in a YAML file (`MODEL_ARGS`); names with or without their hyphens in front."""
    block = document.data.get(key)
    names = [str(name) for name in block] if isinstance(block, dict) else []
    keys = {name if name.startswith("--") else f"--{name.replace('_', '-')}": f"{key}.{name}" for name in names}
    values = {full: block[one.partition(".")[2]] for full, one in keys.items()} if isinstance(block, dict) else {}
    return Given(document, keys, {full: f"{value[:60]}, a variable of the environment" for full, value in values.items()
                                  if isinstance(value, str) and ("${" in value or "$(" in value)})


@dataclass
class ArgumentFields:
    """Fields by the arguments that a recipe gives (`given`), as `reader` reads them."""

    reader: Reader
    draft: Draft
    given: Given
    release: str = f"Megatron-LM {MAIN}"
    _told: set[str] = field(default_factory=set)

    def source(self, name: str) -> str:
        """Upstream file of a default."""
        del name
        return "megatron/training/arguments.py and the configurations that it makes arguments of"

    def integer(self, name: str) -> Setting[int | None]:
        """A whole number, or None."""
        return self._found(name, self.reader.integer)

    def number(self, name: str) -> Setting[float | None]:
        """A number, or None."""
        return self._found(name, self.reader.number)

    def text(self, name: str) -> Setting[str | None]:
        """A text, or None; a number counts as a text."""
        return self._found(name, self._text)

    def words(self, name: str) -> Setting[tuple[str, ...]]:
        """A list of texts."""
        found = self._found(name, self.reader.take)
        value = found.value if isinstance(found.value, list) else [] if found.value is None else [found.value]
        texts = [str(one).strip("[]").replace(",", " ") for one in value]
        return Setting(name, tuple(word for text in texts for word in text.split()), found.taken)

    def flag(self, name: str) -> Setting[bool]:
        """Value that the last switch of the field sets; a switch that YAML gives as false is not given."""
        value, taken = bool(self._default(name)), list[Taken[Any]]()
        for one in self._given(name):
            found = self._take(one, self.reader.flag)
            if found is not None:
                taken.append(found)
                if found.value is True and one not in self.given.unknown:
                    value = arguments()[one].takes == "true"
        return Setting(name, value, tuple(taken))

    def any(self, name: str) -> Setting[Any]:
        """A value of any kind: True of a switch that does not set the default."""
        names = _names_of().get(name, ())
        if not names:
            return Setting(name, None)
        if arguments()[names[0]].is_switch:
            found = self.flag(name)
            return Setting(name, None if found.value == bool(self._default(name)) else True, found.taken)
        return self._found(name, self.reader.take, is_open=True)

    def path(self, name: str) -> Setting[str | None]:
        """A file's name, which may depend on more than the recipe says."""
        return self._found(name, self._text, is_open=True)

    def only_in_main(self) -> list[str]:
        """Arguments of the recipe that core 0.16.1 does not have."""
        return [name for name in self.given.keys if name in arguments() and arguments()[name].version == MAIN]

    def rest(self) -> list[str]:
        """Known arguments that nothing has asked for yet."""
        untouched = {one.key for one in self.reader.untouched()}
        return [name for name, key in self.given.keys.items() if key in untouched and name in arguments()]

    def _given(self, name: str) -> list[str]:
        """Arguments of the recipe that set a field, in its order."""
        return [one for one in self.given.keys if one in _names_of().get(name, ())]

    def _default(self, name: str) -> Any:
        return arguments()[_names_of()[name][0]].default

    def _found(self, name: str, read: Callable[[str], Taken[Any] | None], *, is_open: bool = False) -> Setting[Any]:
        """Last value of a field; with `is_open` also one that the recipe alone does not decide."""
        value, taken = self._default(name), list[Taken[Any]]()
        for one in self._given(name):
            found = read(self.given.keys[one]) if is_open else self._take(one, read)
            if found is not None:
                taken.append(found)
                value = value if one in self.given.unknown and not is_open else found.value
        return Setting(name, value, tuple(taken))

    def _take(self, name: str, read: Callable[[str], Taken[Any] | None]) -> Taken[Any] | None:
        """Value of an argument; one that is not known is a problem, told once."""
        key = self.given.keys[name]
        if name not in self.given.unknown:
            return read(key)
        found = self.reader.take(key)
        if found is not None and name not in self._told:
            self._told.add(name)
            self.draft.fail(found.where, f"{name}: its value depends on {self.given.unknown[name]}")
        return found

    def _text(self, key: str) -> Taken[Any] | None:
        found = self.reader.take(key)
        return found and Taken(str(found.value), found.path, found.where, found.reader)


def names_of(fields: Iterable[str]) -> tuple[str, ...]:
    """Names of all arguments that set one of these fields."""
    return tuple(name for one in fields for name in _names_of().get(one, ()))
