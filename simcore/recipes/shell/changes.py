"""Commands of a shell itself that change variables or arguments: set, shift, unset, read, let, export and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from simcore.errors import InputError, Problem
from simcore.recipes.shell.expansion import Variables
from simcore.recipes.shell.pieces import Piece, items_of, known_text
from simcore.recipes.shell.tokens import Token

__all__ = ["ASSIGNED", "CHANGES", "DECLARES", "assign", "is_assigned", "reads_all", "trimmed"]

ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=")
DECLARES: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})


def is_assigned(token: Token) -> bool:
    """True for `NAME=VALUE`, `NAME+=VALUE`, `NAME[KEY]=VALUE` and arrays."""
    return token.kind == "array" or (token.kind == "word" and ASSIGNED.match(token.text) is not None)


# ---- assignments ----------------------------------------------------------------------------------------------------
def assign(variables: Variables, token: Token) -> None:
    """Sets a variable, an array or one of its items."""
    found = ASSIGNED.match(token.text)
    if found is None:
        return
    name, index, appends = found[1], found[2], found[3] == "+"
    variables.exported |= {name} if variables.exports_all else set()
    if token.kind == "array":
        _assign_array(variables, name, token, appends=appends)
        return
    value = _joined(variables.pieces(token.text[found.end():], token.line)) or (Piece("", token.line),)
    if index is not None:
        _assign_item(variables, name, index[1:-1], value, token.line, appends=appends)
        return
    old = variables.values.get(name, ())
    if name in variables.integers:
        text = known_text(old) if appends else "0"
        number = None if text is None else variables.number(f"({text or 0}) + ({token.text[found.end():]})", token.line)
        value = () if number is None else (Piece(str(number), token.line),)
        if number is None:
            variables.make_unknown(name, token.line, f"the value that line {token.line} computes")
            return
    elif any(piece.is_break for piece in old):  # the first item of an array
        first, *others = items_of(old)
        head = (*first, *value) if appends else value
        value = tuple(piece for one in (head, *others) for piece in (*one, Piece("", token.line, is_break=True)))
    elif appends:
        value = (*old, *value)
    is_open = any(piece.unknown and not piece.is_unset for piece in value)
    if is_open and name in variables.given and not appends:
        value = (Piece(variables.given[name], token.line),)
    variables.values[name] = value


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Text of a value; items of an array in it stand with blanks between them."""
    ends = pieces[:-1] if pieces and pieces[-1].is_break else pieces
    return tuple(replace(piece, text=" ", is_break=False) if piece.is_break else piece for piece in ends)


def _assign_array(variables: Variables, name: str, token: Token, *, appends: bool) -> None:
    keyed = [re.match(r"\[([^]]*)\]=", one.text) for one in token.items]
    old = variables.values.get(name, ()) if appends else ()
    if not appends:
        for item in [one for one in variables.values if one.startswith(f"{name}[")]:
            del variables.values[item]
    if any(keyed):
        variables.make_unknown(name, token.line, f"all items of {name}, which have keys")
        for one, key in zip(token.items, keyed, strict=True):
            if key is not None:
                value = tuple(variables.pieces(one.text[key.end():], one.line)) or (Piece("", one.line),)
                _assign_item(variables, name, key[1], value, one.line, appends=False)
        return
    if old and not old[-1].is_break:
        old = (*old, Piece("", token.line, is_break=True))
    variables.values[name] = (*old, *variables.items(token.items))


def _assign_item(variables: Variables, name: str, index: str, value: tuple[Piece, ...], line: int, *,
                 appends: bool) -> None:
    key = variables.key_of(name, index, line)
    old = variables.values.get(name, ())
    items = items_of(old)
    number = int(key) if key is not None and re.fullmatch(r"[0-9]{1,6}", key) and name not in variables.tables else None
    is_plain = number is not None and number <= len(items) and not any(piece.unknown for piece in old)
    if number is not None and is_plain:
        before = items[number] if appends and number < len(items) else ()
        items[number:number + 1] = [(*before, *value)]
        variables.values[name] = tuple(piece for one in items for piece in (*one, Piece("", line, is_break=True)))
        return
    variables.make_unknown(name, line, f"all items of {name}, of which line {line} sets one")
    if key is not None:
        before = variables.values.get(f"{name}[{key}]", ()) if appends else ()
        variables.values[f"{name}[{key}]"] = (*before, *value)
    else:  # any of them
        for one in [one for one in variables.values if one.startswith(f"{name}[")]:
            variables.make_unknown(one, line, f"item {index[:40]} of {name}, which line {line} sets")


# ---- commands -------------------------------------------------------------------------------------------------------
def _unset(variables: Variables, words: Sequence[Token], within: str) -> bool | None:
    if any(token.text == "-f" for token in words):
        return True
    for token in words[1:]:
        for name in [one for one in variables.values if one == token.text or one.startswith(f"{token.text}[")]:
            del variables.values[name]
    return True


def _set(variables: Variables, words: Sequence[Token], within: str) -> bool | None:
    texts = [token.text for token in words[1:]]
    number = 0
    while number < len(texts) and re.fullmatch(r"[-+][a-zA-Z]+", texts[number]):
        number += 2 if texts[number].endswith("o") else 1
        if "a" in texts[number - 1][1:] and texts[number - 1][:1] == "-":
            variables.exports_all = True
    if number < len(texts):
        _expect_simple(variables, words[0].line, f"set lies in {within}" if within else "")
        variables.arguments = variables.given_to(words[number + 1 + (texts[number] == "--"):])
    return True


def _shift(variables: Variables, words: Sequence[Token], within: str) -> bool | None:
    if not variables.arguments:
        return True
    text = known_text(variables.pieces(words[1].text, words[1].line)) if len(words) > 1 else "1"
    number = variables.number(text, words[0].line) if text else None
    told = words[1].text[:40] if len(words) > 1 else ""
    _expect_simple(variables, words[0].line, f"shift lies in {within}" if within else
                   f"shift {told}" if number is None else "")
    taken = number or 0  # by more than there are it does nothing
    variables.arguments = variables.arguments[taken if 0 <= taken <= len(variables.arguments) else 0:]
    return True


def _expect_simple(variables: Variables, line: int, wrong: str) -> None:
    """InputError for arguments that more than the script decides, if `wrong` says how."""
    if wrong:
        told = f"{wrong}: what the arguments then are is not known"
        raise InputError(Problem(f"{variables.path}:{line}", told))


def _read(variables: Variables, words: Sequence[Token], within: str) -> bool | None:
    """Variables that read, mapfile, readarray, and printf -v set, to what no word tells."""
    names = [token.text for token in words[1:] if re.fullmatch(r"[A-Za-z_]\w*", token.text)]
    if words[0].text == "printf":
        names = [words[2].text] if len(words) > 2 and words[1].text == "-v" else []
    elif not names:
        names = ["MAPFILE" if words[0].text != "read" else "REPLY"]
    for name in names:
        variables.make_unknown(name, words[0].line, f"${name}, which line {words[0].line} reads")
    return None


def reads_all(words: Sequence[Token]) -> bool:
    """True for `read -d '' NAME`, which takes all that it is given."""
    texts = [token.text for token in words]
    ends = any(one.endswith("d") and one[:1] == "-" and other in ("''", '""') for one, other in pairwise(texts))
    return ends and re.fullmatch(r"[A-Za-z_]\w*", texts[-1]) is not None and sum(
        re.fullmatch(r"[A-Za-z_]\w*", text) is not None for text in texts[1:]) == 1


def trimmed(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Text without blanks at its ends."""
    found = list(pieces)
    while found and not found[0].unknown and not found[0].text.strip():
        found.pop(0)
    while found and not found[-1].unknown and not found[-1].text.strip():
        found.pop()
    if found and not found[0].unknown:
        found[0] = replace(found[0], text=found[0].text.lstrip())
    if found and not found[-1].unknown:
        found[-1] = replace(found[-1], text=found[-1].text.rstrip())
    return tuple(found)


def _let(variables: Variables, words: Sequence[Token], within: str) -> bool | None:
    value: int | None = 0
    for token in words[1:]:
        text = known_text(variables.pieces(token.text, token.line))
        value = variables.number(token.text.strip("'\"") if text is None else text, token.line)
    return None if value is None else value != 0


def _getopts(variables: Variables, words: Sequence[Token], within: str) -> bool | None:
    """Options out of the arguments; a script's own, of which there are none, are at their end at once."""
    if not variables.arguments:
        return False
    for name in (*(token.text for token in words[2:3]), "OPTARG", "OPTIND"):
        variables.make_unknown(name, words[0].line, f"${name}, which getopts at line {words[0].line} sets")
    return None


CHANGES: Final = MappingProxyType[str, Callable[[Variables, Sequence[Token], str], bool | None]]({
    "unset": _unset, "set": _set, "shift": _shift, "read": _read, "mapfile": _read, "readarray": _read, "let": _let,
    "getopts": _getopts})
"""Commands that change variables or `$@`, and whether they succeed; the text: what they lie in."""
