"""A block: a closed, frozen part of an input file, and the wording of its problems.

A value that may be a word *or* a mapping (`lengths: fixed`, `lengths: {mean: 900, max: 2048}`) is a union tagged by its
shape, so that a problem is reported for the branch that was meant and not for all of them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
)

from simcore.errors import Problem
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.units import parse_quantity

__all__ = [
    "BY_SHAPE",
    "FLAG",
    "LIST",
    "MAP",
    "WORD",
    "Block",
    "BytesOrAuto",
    "Count",
    "Fraction",
    "Many",
    "Name",
    "Names",
    "OpenMap",
    "PatternOrAuto",
    "Text",
    "problems_of",
    "shorten",
]


class Block(BaseModel):
    """Base class for parts of a scenario file: unknown keys are refused, values not converted.

    So `tp: true` is an error and not 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


_PRINTABLE: Final = "^[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]+$"

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=_PRINTABLE)]
"""Text without control characters, such as a path."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_PRINTABLE)]


def _bytes_or_auto(text: str) -> str:
    if text != "auto" and parse_quantity(text, "B") < 1:
        raise ValueError(f"expected auto, or at least one byte, got {text!r}")
    return text


def _pattern_or_auto(value: str) -> str:
    if value != "auto" and not any(mark in value for mark in ".*+?|[("):
        raise ValueError(f"expected 'auto' or a list, got {value!r}")
    return value


PatternOrAuto = Annotated[Text, AfterValidator(_pattern_or_auto)]
"""A regular expression of whole names with dots, which no single name is; or auto."""
BytesOrAuto = Annotated[Text, AfterValidator(_bytes_or_auto)]
Names = Annotated[tuple[Name, ...], Field(strict=False)]
"""A list of names; not strict, because a file gives a list where a frozen value keeps a tuple."""
Count = Annotated[int, Field(ge=1, le=2**31)]
Many = Annotated[int, Field(ge=1, le=2**63 - 1), BeforeValidator(
    lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)]
"""A count that is often written as `1e9`, which YAML reads as a float; it must have no fraction."""


def _of_percent(value: object) -> object:
    return parse_quantity(value, "%") if isinstance(value, str) and "%" in value else value


Fraction = Annotated[float, Field(gt=0, le=1), BeforeValidator(_of_percent, json_schema_input_type=Annotated[
    float, Field(gt=0, le=1)] | Annotated[str, Field(pattern=r"^[0-9.]+ *%$")])]
"""A share above 0 and up to 1, written as 0.92 or 92%."""


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    for key_path, leaf in _leaves(value, ()):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise ValueError(f"expected finite numbers, got {leaf} at {dotted(key_path)}")
        if not isinstance(leaf, str | int | float | None):
            raise ValueError(f"expected values that JSON has, got {type(leaf).__name__} at {dotted(key_path)}")
    return value


def _leaves(value: object, key_path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*key_path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*key_path, index))
    else:
        yield key_path, value


OpenMap = Annotated[dict[str, Any], AfterValidator(_finite)]
"""A mapping whose keys are checked elsewhere (by a framework or a model family); its values are those of JSON."""


def _shape(value: object) -> str:
    if isinstance(value, dict | BaseModel):
        return "<map>"
    if isinstance(value, list | tuple):
        return "<list>"
    return "<flag>" if isinstance(value, bool) else "<word>"


WORD, FLAG, LIST, MAP = Tag("<word>"), Tag("<flag>"), Tag("<list>"), Tag("<map>")
BY_SHAPE = Discriminator(_shape)


def problems_of(error: ValidationError, block: type[Block], where: Callable[[KeyPath], str]) -> list[Problem]:
    """One problem for each mistake that pydantic found in `block`, worded for users.

    `where`: gives the place, such as `file:line`, of a path of keys.
    """
    return [_problem(details, block, where) for details in error.errors(include_url=False)]


def _problem(details: Any, block: type[Block], where: Callable[[KeyPath], str]) -> Problem:
    key_path = tuple(_keys_of(details["loc"], block))
    place = where(key_path[:-1] if details["type"] == "missing" else key_path)
    annotation: Any = block
    for part in key_path[:-1]:
        annotation = _step(annotation, part)
    if details["type"] == "extra_forbidden":
        return Problem(place, f"unknown key {dotted(key_path)!r}{_suggestion(str(key_path[-1]), _keys(annotation))}")
    expected = _expected(details, _step(annotation, key_path[-1]) if key_path else block)
    got = "" if details["type"] == "missing" else _got(details)
    return Problem(place, f"{dotted(key_path)}: {expected}{got}" if key_path else f"{expected}{got}")


def _keys_of(location: KeyPath, annotation: Any) -> Iterator[str | int]:
    """Keys in pydantic's location of a problem, which also names the branches of tagged unions."""
    for part in location:
        branch = dict(_tagged(annotation)).get(part)
        if branch is None:
            yield part
        annotation = _step(annotation, part) if branch is None else branch


def _tagged(annotation: Any) -> Iterator[tuple[str | int, Any]]:
    """(tag, branch) of every tagged branch of a union."""
    inner, *metadata = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    tag = next((item.tag for item in metadata if isinstance(item, Tag)), None)
    if tag is not None:
        yield tag, inner
    elif get_origin(inner) in (Union, UnionType):
        for branch in get_args(inner):
            yield from _tagged(branch)


def _got(details: Any) -> str:
    return "" if details["type"] == "value_error" else f", got {shorten(details['input'])}"


def shorten(value: object) -> str:
    """Text of a value as a file spells it, cut to 60 characters; `a mapping` for a long mapping."""
    text = repr(value)
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, dict) and len(text) > 60:
        text = "a mapping"
    return text if len(text) <= 60 else f"{text[:56]}..."


_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le"),
    "greater_than": ("more than", "gt"), "less_than": ("less than", "lt"),
}  # fmt: skip


def _expected(details: Any, annotation: Any) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        return f"expected {_described(annotation)}, the key is missing"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"expected {words} {context[key]}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("string_too_long", "string_too_short"):
        return f"expected 1 to {context.get('max_length', 200)} characters"
    if kind == "too_long":
        return f"expected at most {context['max_length']} entries"
    if kind == "string_pattern_mismatch":
        return "expected text without control characters"
    if kind == "finite_number":
        return "expected a finite number"
    hint = "text in quotes" if kind == "string_type" and isinstance(details["input"], int | float) else ""
    return f"expected {hint or _described(annotation)}{_meant(details['input'], annotation)}"


def _meant(value: object, annotation: Any) -> str:
    words = [word for kind in _kinds(annotation) if get_origin(kind) is Literal for word in get_args(kind)
             if isinstance(word, str)]
    close = difflib.get_close_matches(value, words, 1) if isinstance(value, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""


def _suggestion(key: str, keys: list[str]) -> str:
    if key in keys:
        return ": it does not go with the other keys here"
    outer, dot, inner = key.partition(".")
    if dot and outer in keys:
        return f": blocks are nested, write {outer}: {{{inner.replace('.', ': {')}: ...{'}' * (1 + inner.count('.'))}"
    close = difflib.get_close_matches(key, keys, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; the keys here are {', '.join(keys)}" if keys else ""


def _kinds(annotation: Any) -> Iterator[Any]:
    """Branches of unions and of `Annotated`."""
    if get_origin(annotation) is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for branch in get_args(annotation):
            yield from _kinds(branch)
    else:
        yield annotation


def _is_block(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Block)


def _keys(annotation: Any) -> list[str]:
    return [key for kind in _kinds(annotation) if _is_block(kind) for key in kind.model_fields]


def _step(annotation: Any, part: str | int) -> Any:
    """Annotation of a key or of a list's items; Any if it is unknown."""
    for kind in _kinds(annotation):
        if isinstance(part, int) and get_origin(kind) is tuple:
            return get_args(kind)[0]
        if _is_block(kind) and part in kind.model_fields:
            return kind.model_fields[part].annotation
    return Any


_DESCRIBED: Final = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}


def _described(annotation: Any) -> str:
    return " or ".join(dict.fromkeys(map(_described_kind, _kinds(annotation))))


def _described_kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(repr, get_args(kind)))
    if _is_block(kind):
        return f"a mapping ({', '.join(kind.model_fields)})"
    if get_origin(kind) is tuple:
        return "a list"
    return _DESCRIBED.get(kind, "a mapping" if get_origin(kind) is dict else "a value")
