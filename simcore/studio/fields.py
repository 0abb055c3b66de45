"""Fields of a question as JSON text: within limits of depth and number, and only those that its kind has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from simcore.errors import InputError, Problem
from simcore.inputs.yaml_parser import MAX_DEPTH, MAX_NODES

__all__ = ["MAX_BODY", "OF_KIND", "fields_of", "most_bytes"]

_OF_ALL: Final = frozenset({"tab", "name", "text", "values", "files"})
OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "answer": frozenset({"advise"}), "view": frozenset({"marks", "price"}), "memory": frozenset({"marks", "curve"}),
    "pictures": frozenset({"opened", "marks", "curve"}),
    "explain": frozenset({"what"}), "import": frozenset({"gpus", "seq_len", "topology", "format", "settings"}),
    "convert": frozenset({"format"}), "options": frozenset({"framework"}), "limit": frozenset({"quantity"}),
    "compare": frozenset({"jobs", "price"}), "measured": frozenset({"content"}),
    "search": frozenset({"gpus", "frameworks", "topologies", "free", "objectives", "fewest"})}
"""Fields of a kind of question beside those that every kind may have."""
MAX_BODY: Final = 64 * 2**20
"""Bytes of a request at most: a measured run, such as a memory snapshot of 45 MiB as base64."""
_MAX_TEXTS: Final = 8 * 2**20
"""Bytes of every other request at most: eight files of 256 KiB each with a scenario, escaped for JSON."""
_MOST_VALUES: Final = 5 * MAX_NODES
"""Values of a question at most: five jobs side by side, each as large as a file may be."""


def most_bytes(kind: str) -> int:
    """Bytes that a question of a kind may have."""
    return MAX_BODY if "content" in OF_KIND.get(kind, ()) else _MAX_TEXTS


def fields_of(kind: str, body: bytes) -> dict[str, Any]:
    """Fields of a question. InputError for a body that is no JSON object, is too deep or too large, or holds others.

    Each field has at most `MAX_DEPTH` levels, as a scenario file; a number is finite, and text is Unicode.
    """
    try:
        fields = json.loads(body, parse_constant=_refuse_number)
    except RecursionError:
        raise InputError(Problem("", f"expected at most {MAX_DEPTH} levels of nesting, got more")) from None
    except ValueError as error:
        raise InputError(Problem("", f"expected JSON: {error}"[:200])) from None
    if not isinstance(fields, dict):
        raise InputError(Problem("", "expected a JSON object"))
    _expect_plain(fields)
    if others := fields.keys() - _OF_ALL - OF_KIND.get(kind, frozenset()):
        raise InputError(Problem(name[:80], f"the question {kind!r} has no such field") for name in sorted(others)[:8])
    return fields


def _refuse_number(name: str) -> NoReturn:
    raise InputError(Problem("", f"expected a finite number, got {name}"))


def _expect_plain(fields: dict[str, Any]) -> None:
    """Walks all values without recursion; InputError for the first that is too deep or no Unicode, and for too many."""
    waiting: list[tuple[Any, tuple[object, ...]]] = [(fields, ())]
    for count in range(1, _MOST_VALUES + 2):
        if not waiting:
            return
        value, path = waiting.pop()
        if len(path) > MAX_DEPTH + 1 or count > _MOST_VALUES:
            limit = f"{_MOST_VALUES:,} values" if count > _MOST_VALUES else f"{MAX_DEPTH} levels of nesting, got more"
            raise InputError(Problem(str(path[0])[:80], f"expected at most {limit}"))
        if isinstance(value, str):
            _expect_unicode(value, path)
        elif isinstance(value, dict | list):
            waiting += _inside(value, path)


def _inside(value: dict[str, Any] | list[Any], path: tuple[object, ...]) -> Iterator[tuple[Any, tuple[object, ...]]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(key, str):
            _expect_unicode(key, path)
        yield inner, (*path, key)


def _expect_unicode(text: str, path: tuple[object, ...]) -> None:
    """InputError at `path` for half of a surrogate pair, which JSON can spell and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = ".".join(map(str, path))[:80]
        got = f"\\u{ord(text[error.start]):04x}"
        raise InputError(Problem(where, f"expected Unicode text, got half of a surrogate pair ({got})")) from None
