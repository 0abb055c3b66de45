"""Output of `$(...)` where its words alone tell it: echo, printf, seq, expr, basename and dirname, and filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from simcore.errors import InputError
from simcore.recipes.shell.arithmetic import Arithmetic
from simcore.recipes.shell.pieces import Word
from simcore.recipes.shell.tokens import Token, tokens_of

__all__ = ["document_of", "output_of"]

_MOST: Final = 1_000
"""Numbers of a sequence."""


def document_of(inner: str, path: str, line: int) -> Token | None:
    """Here-document that `cat` alone passes on; None for another command."""
    try:
        tokens = [token for token in tokens_of(inner, path, line) if token.text != "\n"] if "<<" in inner else []
    except InputError:
        return None
    is_passed = len(tokens) == 2 and tokens[0].text == "cat" and tokens[1].kind in ("document", "literal")
    return tokens[1] if is_passed else None


def output_of(inner: str, path: str, line: int, words_of: Callable[[Sequence[Token]], list[Word]]) -> str | None:
    """Output without its last line feeds; None if more than its words decide it. `words_of`: words of tokens."""
    try:
        tokens = [token for token in tokens_of(inner, path, line) if token.text != "\n"]
    except InputError:
        return None
    if not tokens:  # a comment
        return ""
    if any(token.kind != "word" and token.text != "|" for token in tokens):
        return None
    stages: list[list[Token]] = [[]]
    for token in tokens:
        if token.kind == "operator":
            stages.append([])
        else:
            stages[-1].append(token)
    if not stages[0] or stages[0][0].text not in _FIRST or any(not stage for stage in stages):
        return None
    text: str | None = ""
    for number, stage in enumerate(stages):
        words = words_of(stage)
        if any(word.unknown for word in words):
            return None
        name, given = words[0].text, [word.text for word in words[1:]]
        if text is not None:
            text = _first(name, given) if number == 0 else _filtered(name, given, text)
    return None if text is None else text.rstrip("\n")


def _first(name: str, given: list[str]) -> str | None:
    """Output of a command that reads nothing."""
    if name == "echo" and not any("\\" in word for word in given):
        if given[:1] in (["-e"], ["-ne"], ["-E"]):
            return None
        is_short = given[:1] == ["-n"]
        return " ".join(given[is_short:]) + ("" if is_short else "\n")
    if name == "printf" and len(given) == 2 and given[0] in ("%s", "%d", "%s\\n", "%d\\n"):
        return given[1] if "s" in given[0] or re.fullmatch(r"[0-9]+", given[1]) else None
    if name == "seq" and 1 <= len(given) <= 3 and all(re.fullmatch(r"-?[0-9]{1,6}", word) for word in given):
        numbers = [int(word) for word in given]
        first, last = (numbers[0] if len(numbers) > 1 else 1), numbers[-1]
        step = numbers[1] if len(numbers) == 3 else 1
        if step == 0 or abs(last - first) // abs(step) > _MOST:
            return None
        return "".join(f"{number}\n" for number in range(first, last + (1 if step > 0 else -1), step))
    if name == "expr":
        return _computed(" ".join(given)) if len(given) == 3 else None
    if name == "basename" and given and not given[0].startswith("-"):
        base = given[0].rstrip("/").rpartition("/")[2]
        return base.removesuffix(given[1]) if len(given) == 2 else base if len(given) == 1 else None
    if name == "dirname" and len(given) == 1 and not given[0].startswith("-"):
        return given[0].rstrip("/").rpartition("/")[0] or ("/" if given[0].startswith("/") else ".")
    return "" if name in (":", "true") else None


def _filtered(name: str, given: list[str], text: str) -> str | None:
    """Output of a command that reads the text of the one before it."""
    if name == "bc" and not given:
        return _computed(text)
    if name == "tr" and len(given) == 2:
        old, new = (word.replace("\\n", "\n") for word in given)
        return text.replace(old, new) if len(old) == len(new) == 1 else None
    if name == "wc" and given in (["-l"], ["-w"]):
        return str(text.count("\n") if given == ["-l"] else len(text.split()))
    return None


def _computed(text: str) -> str | None:
    """Result of one operation on whole numbers, which bc and expr have alike."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*[-+*/%]\s*[0-9]{1,9}\s*", text):
        return None
    value = Arithmetic(lambda name: None, lambda name, value: None).value(re.sub(r"\b0+(?=[0-9])", "", text))
    return None if value is None else str(value)


_FIRST: Final = frozenset({"echo", "printf", "seq", "expr", "basename", "dirname", ":", "true"})
