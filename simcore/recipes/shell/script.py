"""Reads a shell script: values of its variables, and the commands that it would start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.commands import Started
from simcore.recipes.shell.expansion import Variables
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.run import Run
from simcore.recipes.shell.syntax import nodes_of
from simcore.recipes.shell.tokens import Token, tokens_of

__all__ = ["Script", "Started", "read_script"]

_SBATCH: Final = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """Commands of a script in order, its variables at its end as words, and the words of its `#SBATCH` lines.

    Variables that are set for one command alone count among them. `exported`: names of those that commands see.
    """

    commands: tuple[Started, ...]
    variables: Mapping[str, tuple[Word, ...]]
    sbatch: tuple[Word, ...]
    exported: tuple[str, ...] = ()


def read_script(text: str, path: str, variables: Mapping[str, str] | None = None,
                beside: Mapping[str, str] | None = None) -> Script:
    """Reads a script. InputError, with a line, for a text that is no shell script, or that expands beyond limits.

    `variables`: values that the environment gives, as far as they are known; they also answer for variables that more
    than the script decides. `beside`: texts of files that it may source, by their names.
    """
    if "\0" in text:
        raise InputError(Problem(path, "not read as a shell script: it has a NUL byte"))
    run = Run(Variables(path, given=dict(variables or {}), beside=dict(beside or {})))
    run.take(nodes_of(tokens_of(text, path), path))
    run.variables.values.update({name: value for name, value in run.before.items() if value})
    held = {name: tuple(run.variables.words([Token("word", f"${{{name}[@]}}", 1)])) for name in run.variables.held()}
    exported = tuple(name for name in held if (name in run.variables.exported or name in run.before)
                     and not (name in run.variables.given and name not in _set_in(text)))
    return Script(tuple(run.commands), held, _headers(text, run), exported)


def _set_in(text: str) -> frozenset[str]:
    """Names that a text sets somewhere."""
    return frozenset(re.findall(r"\b([A-Za-z_]\w*)\+?=", text))


def _headers(text: str, run: Run) -> tuple[Word, ...]:
    """Words of `#SBATCH` lines: the script's own, and those of scripts in it, whose variables have their values."""
    own = [(found[0], text.count("\n", 0, found.start()) + 1) for found in _SBATCH.finditer(text)
           if not (run.headers and ("$" in found[0] or found[0] in {header for header, _ in run.headers}))]
    return tuple(Word(word, line) for header, line in (*own, *run.headers)
                 for word in _SBATCH.sub(r"\1", header).split("#")[0].split())
