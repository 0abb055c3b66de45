"""`rankscope query`: SQL over the rows of results. Imports the engine when called."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from simcore.tables.query import Answer

__all__ = ["lines_of", "query"]

_MOST: Final = 1000
"""Rows that a terminal shows; JSON has all of them."""
_WIDEST: Final = 200
"""Characters of a cell at most."""


def query(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of run -o or search -o.")],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One select over the views results and columns.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print a list of rows as JSON, nothing else.")] = False,
) -> None:
    """Ask results with SQL: one row a scenario, or a candidate of a search.

    Keys are written as in a scenario, such as training.seq_len or mesh.tp; `select * from columns` lists all columns.
    Nothing can be written, and no other file be read. Needs rankscope[query]. Exit code 2 for wrong SQL or no rows.
    """
    from simcore.tables.query import ask

    answer = ask(folder, sql)
    for line in _as_json(answer) if json else lines_of(answer):
        typer.echo(line)


def _as_json(answer: Answer) -> Iterator[str]:
    from json import dumps

    rows = (dumps(dict(zip(answer.names, row, strict=True)), ensure_ascii=False, default=str) for row in answer.rows)
    before = next(rows, None)
    yield "["
    for row in rows:
        yield f"{before},"
        before = row
    if before is not None:
        yield before
    yield "]"


def lines_of(answer: Answer) -> Iterator[str]:
    """Lines of an aligned table; numbers to the right."""
    rows = [*islice(answer.rows, _MOST)]
    cells = [answer.names, *([_cell(value) for value in row] for row in rows)]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [not any(_is_number(row[at]) for row in rows) for at in range(len(answer.names))]
    for row in cells:
        yield "  ".join(f"{text:<{width}}" if is_left else f"{text:>{width}}"
                        for text, width, is_left in zip(row, wide, left, strict=True)).rstrip()
    if further := sum(1 for _ in answer.rows):
        yield f"and {further:,} more rows: --json has all of them"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    from simcore.cli.sheets.tables import plain

    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    text = plain(str(value))
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST - 3]}..."
