"""Rows for the page of all keys of a scenario file, from its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from simcore.inputs.scenario import scenario_schema
from simcore.inputs.without_effect import WITHOUT_EFFECT

__all__ = ["idle_rows", "key_rows"]


def key_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yields (name, values, default, description) of every key of a scenario file, as Markdown.

    A nested key has its full name, such as `mesh.tp`.
    """
    schema = scenario_schema()
    for key, field, required in _keys(schema, schema["$defs"], ""):
        yield f"`{key}`", _values(field, schema["$defs"]), _left_out(field, required=required), field["description"]


def idle_rows() -> Iterator[tuple[str, str, str]]:
    """Yields (key, where, reason) of every rule for keys that are accepted and change no number, as Markdown."""
    for row in WITHOUT_EFFECT:
        where = [f"{name} {value}" for name, value in (("workload", row.workload), ("method", row.method))
                 if value != "*"]
        yield f"`{row.key}`", ", ".join(where) or "everywhere", row.why


def _keys(block: dict[str, Any], known: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    for name, field in block["properties"].items():
        yield f"{prefix}{name}", field, name in block.get("required", ())
        for branch in _branches(field):
            if "$ref" in branch:
                yield from _keys(_block(branch, known), known, f"{prefix}{name}.")


def _branches(field: dict[str, Any]) -> list[dict[str, Any]]:
    branches: list[dict[str, Any]] = field.get("oneOf") or field.get("anyOf") or [field]
    return branches


def _block(branch: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = known[branch["$ref"].rpartition("/")[2]]
    return block


_TYPES: Final = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false",
                 "null": "null", "array": "list", "object": "mapping"}  # fmt: skip


def _values(field: dict[str, Any], known: dict[str, Any]) -> str:
    return ", or ".join(_value(branch, known) for branch in _branches(field))


def _value(branch: dict[str, Any], known: dict[str, Any]) -> str:
    if "$ref" in branch:
        return "{" + ", ".join(_block(branch, known)["properties"]) + "}"
    words = [branch["const"]] if "const" in branch else branch.get("enum", [])
    return " ".join(f"`{word}`" for word in words) or _TYPES[branch["type"]] + _between(branch)


def _between(branch: dict[str, Any]) -> str:
    """Largest value of a number, or of each number of a list, as text."""
    each, most = "", branch.get("maximum")
    if most is None:
        each, most = "each ", branch.get("items", {}).get("maximum")
    return "" if most is None else f", {each}at most {most:,}"


def _left_out(field: dict[str, Any], *, required: bool) -> str:
    if required or "default" not in field:
        return "required" if required else "required, but where it serves"
    default = field["default"]
    return "each key's own" if isinstance(default, dict) and default else f"`{json.dumps(default).strip(chr(34))}`"
