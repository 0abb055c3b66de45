"""Options in the words of a launch command, with their lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.pieces import Word

__all__ = ["NUMBER", "Number", "Options", "parted"]

NUMBER: Final = re.compile(r"[1-9][0-9]{0,6}")
"""Whole numbers that processes, nodes and GPUs may have."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that an option says, and the place where it stands."""

    value: int
    where: str


@dataclass(frozen=True, slots=True)
class Options:
    """Words of one launcher's options. `path`: name of the script; `launcher`: in messages."""

    words: Sequence[Word]
    path: str
    launcher: str

    def word(self, *names: str) -> Word | None:
        """Last value of an option (`--a v`, `--a=v`; `-a v`, `-av` for one letter); None if it is not there.

        InputError for a value that the script alone does not tell, and for an option without one.
        """
        found: Word | None = None
        for number, word in enumerate(self.words):
            name, has_value, inner = word.text.partition("=")
            short = word.text[:2]
            if name in names and has_value:
                found = Word(inner, word.line, word.unknown)
            elif word.text in names:
                if number + 1 >= len(self.words):
                    raise self.problem(word.line, f"{word.text} has no value")
                found = self.words[number + 1]
            elif short in names and len(word.text) > 2 and not short.startswith("--"):
                found = Word(word.text[2:], word.line, word.unknown)
        if found is not None and found.unknown:
            raise self.problem(found.line, f"{names[0]} {found.text}: not known from the script alone: {found.unknown}")
        return found

    def number(self, *names: str) -> Number | None:
        """Value of an option that is a whole number; InputError for another."""
        found = self.word(*names)
        if found is None:
            return None
        if not NUMBER.fullmatch(found.text):
            raise self.problem(found.line, f"{names[0]}: expected a number of processes or nodes, got {found.text!r}")
        return Number(int(found.text), f"{self.path}:{found.line}")

    def refuse(self, what: str, *names: str) -> None:
        """Raises InputError if one of the options is there."""
        for word in self.words:
            if word.text.partition("=")[0] in names:
                raise self.problem(word.line, f"not yet: {word.text}: {what}")

    def problem(self, line: int, message: str) -> InputError:
        """Returns the error at a line of the script."""
        return InputError(Problem(f"{self.path}:{line}", f"{self.launcher}: {message}"))


def parted(words: Sequence[Word], names: Sequence[str]) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """Options with one of the names, each with its value, and all other words."""
    own: list[Word] = []
    rest: list[Word] = []
    number = 0
    while number < len(words):
        name, has_value, _ = words[number].text.partition("=")
        taken = 2 if name in names and not has_value else 1
        (own if name in names else rest).extend(words[number:number + taken])
        number += taken
    return tuple(own), tuple(rest)
