"""Conditions of a shell script: `[ ]`, `test`, `[[ ]]` and `(( ))`, as far as the script alone decides them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from simcore.recipes.shell.expansion import Piece, Variables
from simcore.recipes.shell.tokens import Token, tokens_of

__all__ = ["holds", "matches", "text_of"]

_NUMBERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge}


def holds(tokens: Sequence[Token], variables: Variables) -> bool | None:
    """Truth of a command that is a condition; None if it is none, or if more than the script decides it."""
    first = tokens[0]
    if first.kind == "word" and first.text == "!":
        inner = holds(tokens[1:], variables) if len(tokens) > 1 else None
        return None if inner is None else not inner
    if first.kind == "arithmetic":
        value = variables.number(first.text, first.line)
        return None if value is None else value != 0
    if first.kind == "condition":
        return _any(tokens_of(first.text, variables.path, first.line), variables)
    if first.text in ("[", "test"):
        inner_tokens = tokens[1:-1] if first.text == "[" else tokens[1:]
        return _any(list(inner_tokens), variables)
    return {"true": True, ":": True, "false": False}.get(first.text)


def matches(text: str | None, pattern: str) -> bool | None:
    """True if a text fits an arm of `case`; None if either is not known."""
    return None if text is None else fnmatchcase(text, pattern)


def text_of(pieces: Sequence[Piece]) -> str | None:
    """Text of a word; a variable that the script does not set counts as empty; None if it is not known."""
    if any(piece.unknown and not piece.is_unset for piece in pieces):
        return None
    return "".join("" if piece.is_unset else piece.text for piece in pieces if not piece.is_break)


def _any(tokens: list[Token], variables: Variables) -> bool | None:
    """Parts joined by `||` or -o, each of parts joined by `&&` or -a."""
    results = [_all(part, variables) for part in _parts(tokens, ("||", "-o"))]
    return True if True in results else None if None in results else False


def _all(tokens: list[Token], variables: Variables) -> bool | None:
    results = [_single(part, variables) for part in _parts(tokens, ("&&", "-a"))]
    return False if False in results else None if None in results else True


def _parts(tokens: list[Token], borders: tuple[str, ...]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.text in borders:
            parts.append([])
        elif token.text != "\n":
            parts[-1].append(token)
    return parts


def _single(tokens: list[Token], variables: Variables) -> bool | None:
    if tokens and tokens[0].text == "!":
        inner = _single(tokens[1:], variables)
        return None if inner is None else not inner
    if any(token.kind != "word" for token in tokens):
        return None
    texts = [text_of(variables.pieces(token.text, token.line)) for token in tokens]
    if len(texts) == 1:
        return None if texts[0] is None else bool(texts[0])
    if len(texts) == 2 and tokens[0].text in ("-z", "-n"):
        return None if texts[1] is None else bool(texts[1]) == (tokens[0].text == "-n")
    if len(texts) == 3:
        return _compared(texts[0], tokens[1].text, texts[2])
    return None


def _compared(left: str | None, sign: str, right: str | None) -> bool | None:
    if left is None or right is None:
        return None
    if sign in ("=", "==", "!="):
        return fnmatchcase(left, right) == (sign != "!=")
    if sign in _NUMBERS and all(re.fullmatch(r"-?[0-9]{1,18}", one) for one in (left, right)):
        return _NUMBERS[sign](int(left), int(right))
    return None
