"""Candidates of a search that a user chose: those of any outcome, in the order and with the columns of the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from simcore.cli.sheets.chosen import chosen_columns
from simcore.cli.sheets.found import counted_lines
from simcore.cli.sheets.grid import wrapped
from simcore.cli.sheets.tables import plain
from simcore.search.rows import CANDIDATES, OWN, Row

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcore.results.found import SearchResult
    from simcore.results.frame import Field
    from simcore.tables.choice import Choice

__all__ = ["candidate_lines"]

_STYLES: Final = {"fits": "green", "unsure": "yellow", "oom": "bold red"}
_RESULTS: Final = ("peak_bytes", "step_s", "tokens_per_s_per_gpu", "problems")


def candidate_lines(result: SearchResult, rows: Sequence[Row], which: Choice[Row], width: int, wide: int,
                    ) -> Iterator[RenderableType]:
    """Lines and tables about chosen candidates.

    `width`: characters of a line of text; `wide`: of a row of the table.
    """
    order = "" if which.order is None else f", by {which.order.words}"
    head = f"{result.name}: {len(rows):,} of {result.counts.candidates:,} layouts{order}"
    yield from map(Text, wrapped(plain(head), width, "    "))
    if rows:
        styles = [_STYLES.get(CANDIDATES.verdict(row) or "", "") for row in rows]
        for grid in chosen_columns(rows, which.columns or _usual(rows, which), styles, wide):
            yield Text()
            yield grid
    yield Text()
    yield from counted_lines(result, width)


def _usual(rows: Sequence[Row], which: Choice[Row]) -> list[Field[Row]]:
    """Columns where a user names none: outcome, keys in which the rows differ, results, and what is sorted by."""
    own = {column.name for column in OWN} - {"verdict", "num_gpus"}
    differ = [name for name, field in CANDIDATES.fields.items() if name not in own and len(set(map(
        field.value, rows))) > 1]
    results = [name for name in _RESULTS if any(CANDIDATES.fields[name].value(row) is not None for row in rows)]
    order = [] if which.order is None else [which.order.field.column.name]
    return [CANDIDATES.fields[name] for name in dict.fromkeys(("outcome", *differ, *results, *order))]
