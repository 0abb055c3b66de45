"""Scripts within a script: `eval`, `bash -c`, `sbatch --wrap`, and here-documents that a shell reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simcore.recipes.shell.expansion import Variables
from simcore.recipes.shell.pieces import Piece, Word
from simcore.recipes.shell.tokens import Token

__all__ = ["Inner", "inner_of"]

_SHELLS: Final = frozenset({"bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash", "zsh"})


@dataclass(frozen=True, slots=True)
class Inner:
    """A script in a script: its text and line, and the words before it (`srun -N 2`).

    `is_own`: the same shell reads it, as for eval. `arguments`: as in `Values`. `header`: options of sbatch before it,
    as an `#SBATCH` line.
    """

    text: str
    line: int
    around: tuple[Word, ...] = ()
    is_own: bool = False
    arguments: tuple[tuple[Piece, ...], ...] | None = None
    header: str = ""


def inner_of(words: Sequence[Word], document: Token | None, variables: Variables) -> Inner | None:
    """Script that a command is given; None for a command that is given none. What is not known stays so in it."""
    if words[0].text == "eval":
        return Inner(" ".join(_text(word, variables) for word in words[1:]), words[0].line, is_own=True)
    for number, word in enumerate(words[:-2] if any(word.text in _SHELLS for word in words) else ()):
        at = number + 1
        while word.text in _SHELLS and at < len(words) - 1 and words[at].text[:1] in ("-", "+"):
            if re.fullmatch(r"-[a-z]*c", words[at].text):
                script = words[at + 1]
                if script.unknown and not any(piece.text for piece in script.pieces if not piece.unknown):
                    return None
                return Inner(_text(script, variables), script.line, tuple(words[:number]),
                             arguments=_behind(words[at + 2:]))
            at += 2 if words[at].text.endswith("o") else 1
    if words[0].text == "sbatch":
        return _submitted(words, document, variables)
    if document is not None and (words[0].text == "srun" or (
            words[0].text in _SHELLS and all(word.text[:1] == "-" for word in words[1:]))):
        return Inner(variables.retold(variables.document(document)), document.line, tuple(words))
    return None


def _submitted(words: Sequence[Word], document: Token | None, variables: Variables) -> Inner | None:
    """Script of sbatch: its input, that of --wrap, or the COMMAND that NeMo RL's `ray.sub` runs."""
    header = " ".join(word.text for word in words[1:] if not word.unknown and " " not in word.text
                      and not word.text.startswith("--wrap") and not word.text.endswith((".sub", ".sh")))
    wrapped, command = _wrapped(words), variables.values.get("COMMAND")
    if wrapped is not None:
        return Inner(_text(wrapped, variables), wrapped.line, header=f"#SBATCH {header}")
    if document is not None:
        return Inner(variables.retold(variables.document(document)), document.line, header=f"#SBATCH {header}")
    if command and any(word.text.rpartition("/")[2] == "ray.sub" for word in words):
        return Inner(variables.retold(command), command[0].line, header=f"#SBATCH {header}")
    return None


def _wrapped(words: Sequence[Word]) -> Word | None:
    """Script of `sbatch --wrap`."""
    for number, word in enumerate(words if words[0].text == "sbatch" else ()):
        if word.text == "--wrap" and number + 1 < len(words):
            return words[number + 1]
        if word.text.startswith("--wrap="):
            first, *others = word.pieces or (Piece(word.text, word.line),)
            rest = Piece(first.text.removeprefix("--wrap="), first.line, first.is_quoted, first.unknown, first.is_unset)
            return Word(word.text.removeprefix("--wrap="), word.line, word.unknown, pieces=(rest, *others))
    return None


def _text(word: Word, variables: Variables) -> str:
    return variables.retold(word.pieces) if word.unknown else word.text


def _behind(words: Sequence[Word]) -> tuple[tuple[Piece, ...], ...] | None:
    """Items of `$@` of `bash -c TEXT NAME ITEMS`; None where it has no such words."""
    return tuple((Piece(word.text, word.line, not word.may_hold, word.unknown, word.is_unset),)
                 for word in words[1:]) if words[1:] else None
