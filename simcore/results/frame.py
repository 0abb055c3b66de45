"""Results as columns: every column has a name with its unit, a type that does not change, and rows under it.

A column without a value in a row is empty there (None), never zero. Text has no control characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

__all__ = ["UNITS", "Column", "Dtype", "Field", "Frame", "Kind", "Value", "flat", "frame", "spelled", "typed",
           "unit_of"]

Dtype = Literal["string", "int64", "float64", "bool"]
Kind = Literal["scenarios", "ranks"]
Value = str | int | float | bool | None
T = TypeVar("T")

UNITS: Final = {"_bytes": "B", "_s": "s", "_usd": "USD", "_tflops_per_gpu": "TFLOP/s", "_tokens": "tokens",
                "tokens_per_s_per_gpu": "tokens/s"}
"""Unit by the end of a column's name."""

_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table; `unit` is "" for counts, shares and text, `words` a description."""

    name: str
    dtype: Dtype
    unit: str
    words: str


@dataclass(frozen=True)
class Field(Generic[T]):
    """A column of a table with the function that gives its value for one item, such as a report."""

    column: Column
    value: Callable[[T], Value]


@dataclass(frozen=True)
class Frame:
    """A table of results, one row a scenario or a class of ranks (`kind`).

    `rows[i][j]` belongs to `columns[j]`. `pandas.DataFrame(frame.to_dict())` accepts it; in a notebook it is shown as a
    table.
    """

    kind: Kind
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]

    @property
    def records(self) -> list[dict[str, Value]]:
        """Rows in order, each as a mapping from names of columns to values."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def to_dict(self) -> dict[str, list[Value]]:
        """Values by name of column, each a list from the first row to the last."""
        return {column.name: [row[place] for row in self.rows] for place, column in enumerate(self.columns)}

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<table of {self.kind}: {len(self.rows):,} rows, {len(self.columns)} columns>"

    def _repr_html_(self) -> str:
        from viz.notebook.frame import frame_html  # see `Report`

        return frame_html(self)


def unit_of(name: str) -> str:
    """Unit of a column named `name`, by the end of the name (`UNITS`); "" if it has none of these ends."""
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def _printable(text: str) -> str:
    """Text without control characters and lone surrogates, so that a row is one line in any file."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def typed(name: str, words: str, values: Iterable[Any]) -> tuple[Column, list[Value]]:
    """(column named `name`, its values in one type); a value that is None stays None.

    The type is bool, int64 or float64 if all values have it (integers may stand among floats), else text. `words`:
    description of the column.
    """
    listed = list(values)
    dtype = _dtype([value for value in listed if value is not None])
    return Column(_printable(name), dtype, unit_of(name), words), [_as(dtype, value) for value in listed]


def _dtype(values: Sequence[Any]) -> Dtype:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "bool"
    if kinds == {int} and all(-_INT64 <= value < _INT64 for value in values):
        return "int64"
    return "float64" if float in kinds and kinds <= {int, float} else "string"


def _as(dtype: Dtype, value: Any) -> Value:
    if value is None:
        return None
    kinds: dict[Dtype, Callable[[Any], Value]] = {"bool": bool, "int64": int, "float64": float, "string": spelled}
    return kinds[dtype](value)


def spelled(value: Any) -> str:
    """Text unchanged, other values as JSON."""
    return _printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True))


def frame(kind: Kind, fields: Sequence[Field[T]], items: Sequence[T], further: Mapping[str, tuple[str, list[Any]]]
          ) -> Frame:
    """Table with a row for each of `items`: the values of `fields`, then the `further` columns.

    `further`: by name, (description, a value for each item).
    """
    known = [[_clean(field.value(item)) for field in fields] for item in items]
    more = [typed(name, words, values) for name, (words, values) in further.items()]
    rows = (tuple(row) + tuple(values[n] for _, values in more) for n, row in enumerate(known))
    return Frame(kind, (*(field.column for field in fields), *(column for column, _ in more)), tuple(rows))


def _clean(value: Value) -> Value:
    return _printable(value) if isinstance(value, str) else value


def flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of nested mappings: `{"mesh": {"tp": 2}}` -> `("mesh.tp", 2)`.

    Lists are values, empty mappings are left out. `before`: text in front of each key.
    """
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from flat(inner, f"{before}{key}.")
        else:
            yield f"{before}{key}", inner
