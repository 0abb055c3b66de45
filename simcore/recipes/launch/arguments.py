"""Arguments of a training program as keys of its recipe: `--a.b=c`, `--a.b c`, `--a.b c d`, `a.b=c`, `--flag`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.inputs.document import parse_value
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.recipes.shell.pieces import Word

__all__ = ["Arguments", "Override", "arguments_of", "unknown_of"]

_CONFIGS: Final = ("--config", "-c", "--config_file", "--config-file", "--job.config_file", "--job.config-file")
_FILE: Final = (".yaml", ".yml", ".toml", ".json")
_NEGATES: Final = re.compile(r"(?<=--)no-|(?<=\.)no-(?=[^.]*$)")
"""Prefix of a switch that is off: of axolotl (`cli/utils/args.py` add_options_from_config), and of tyro."""
_KEY: Final = re.compile(r"\+{0,2}[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Override:
    """A key of the recipe that a launch command sets: path, value, and the place of the argument.

    `unknown`: message of a value that is not known from the script alone, such as `$LOG_DIR`, which is its text here;
    "" for one that is. `sign`: Hydra's before the key, `+` for one that the recipe does not have, `++` for any,
    `~` for one that is taken out.
    """

    path: KeyPath
    value: Any
    where: str
    unknown: str = ""
    sign: str = ""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Keys that arguments set; `config`: the word of the recipe's file, None if none names one."""

    overrides: tuple[Override, ...]
    config: Word | None


def arguments_of(words: Sequence[Word], path: str, *, names: tuple[str, ...] = (), dashes: bool = False,
                 hydra: bool = False) -> Arguments:
    """Reads the arguments behind a program. InputError, with the line, for one that sets no key.

    `names`: words that may stand alone, such as `train`. `dashes`: dashes in keys are underscores, and `--no-KEY` or
    `--block.no-KEY` is false. `hydra`: `~KEY` takes a key out.
    """
    found, number = list[Override](), 0
    config: Word | None = None
    while number < len(words):
        word = words[number]
        where = f"{path}:{word.line}"
        name, has_value, inner = word.text.partition("=")
        following = words[number + 1] if number + 1 < len(words) else None
        number += 1
        if word.text in names or (not word.text and not word.unknown):
            continue
        if hydra and re.fullmatch(r"~[A-Za-z_][\w.-]*", word.text):
            found.append(Override(tuple(name[1:].split(".")), None, where, sign="~"))
            continue
        if not name.startswith("-") and not has_value:
            if word.text.endswith(_FILE) and config is None:
                config = word
                continue
            raise _told(word, where, "sets no key of a recipe")
        value = Word(inner, word.line, word.unknown) if has_value else None
        if dashes and value is None and _NEGATES.search(name):
            name, value = _NEGATES.sub("", name), Word("false", word.line)
        if value is None and following is not None and not following.text.startswith("--"):
            value, number = following, number + 1
        if name in _CONFIGS:
            config = value
            continue
        key = name.removeprefix("--")
        if not _KEY.fullmatch(key):
            raise _told(word, where, "sets no key of a recipe")
        further = () if has_value or value is None else tuple(takewhile(_continues, words[number:]))
        number += len(further)
        found.append(_override(key.replace("-", "_") if dashes else key, value, further, where))
    return Arguments(tuple(found), config)


def _continues(word: Word) -> bool:
    """True for a further value of an option that takes several (argparse's `nargs="+"`)."""
    return bool(word.text) and not word.text.startswith("-") and "=" not in word.text and not word.text.endswith(_FILE)


def _override(key: str, value: Word | None, further: Sequence[Word], where: str) -> Override:
    """Key of the recipe with its value, a list with `further` ones; without a value it is a switch that is on."""
    path, sign = tuple(key.lstrip("+").split(".")), key[:len(key) - len(key.lstrip("+"))]
    if value is None:
        return Override(path, value=True, where=where, sign=sign)
    if unknown := next((word for word in (value, *further) if word.unknown), None):
        told = _message(unknown, f"is the value of {key}, and not known from the script alone")
        return Override(path, " ".join(word.text for word in (value, *further)), where, told, sign)
    values = [parse_value(word.text, where) for word in (value, *further)]
    return Override(path, values if further else values[0], where, sign=sign)


def unknown_of(overrides: Sequence[Override]) -> dict[str, Problem]:
    """Problem of each value that is not known, by its dotted key."""
    return {dotted(one.path): Problem(one.where, one.unknown) for one in overrides if one.unknown}


def _told(word: Word, where: str, what: str) -> InputError:
    return InputError(Problem(where, _message(word, what)))


def _message(word: Word, what: str) -> str:
    reason = f": {word.unknown}" if word.unknown else ""
    return f"the argument {word.text!r} {what}{reason}"
