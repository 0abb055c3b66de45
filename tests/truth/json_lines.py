"""JSON as the probes print it: a row a line, so that another row of upstream shows as one line that differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["by_name", "listed", "with_cases"]


def listed(rows: Iterable[Any]) -> str:
    """Text of a list of rows."""
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]"


def by_name(rows: Mapping[str, Any], *, compact: bool = False, indent: str = "") -> str:
    """Lines of rows by their names, without the braces around them; `compact`: without spaces inside a row."""
    separators = (",", ":") if compact else None
    return ",\n".join(f"{indent}{json.dumps(name)}: {json.dumps(row, separators=separators)}"
                      for name, row in rows.items())


def with_cases(head: Mapping[str, Any], rows: Mapping[str, Any], *, compact: bool = False, indent: str = "") -> str:
    """Text of versions and shapes, and of the rows below their key `cases`."""
    return json.dumps(head)[:-1] + ', "cases": {\n' + by_name(rows, compact=compact, indent=indent) + "\n}}"
