"""Limits of a quantity: one line of answer each, then a table of them, or the best layouts at a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from simcore.cli.sheets.found import answer
from simcore.cli.sheets.grid import wrapped
from simcore.cli.sheets.tables import plain, plain_table
from simcore.results.limit import QUANTITIES
from simcore.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcore.results.found import FreeLimit
    from simcore.results.limit import Limit, Value

__all__ = ["free_limit_lines", "limit_lines"]

_SHOWN: Final = 5
"""Exceptions that are listed at most."""


def limit_lines(found: Sequence[Limit], width: int) -> Iterator[RenderableType]:
    """A text for each scenario, then a table with a row for each; all limits are of one quantity."""
    for limit in found:
        yield from _lines(f"{limit.name}: {QUANTITIES[limit.quantity]}: {_told(limit)}", width)
        yield from _exceptions(limit, width)
    yield _table(found)


def free_limit_lines(limit: FreeLimit, width: int) -> Iterator[RenderableType]:
    """A text with the limit of a quantity over all layouts, then the best layouts there."""
    yield from _lines(f"{limit.name}: {QUANTITIES[limit.quantity]}: {_found(limit)}", width)
    yield from _exceptions(limit, width)
    if limit.untried:
        yield from _lines(
            f"  {limit.untried:,} smaller numbers were not tried: the powers of two above them do not fit", width)
    if limit.best is not None:
        yield from answer(limit.best, width)


def _lines(text: str, width: int) -> Iterator[Text]:
    """Lines of a text, further ones indented."""
    yield from map(Text, wrapped(plain(text), width, "    "))


def _told(limit: Limit) -> str:
    if limit.problem:
        return "refused with every value"
    at = "" if limit.peak_bytes is None else f" ({format_bytes(limit.peak_bytes)})"
    fits = "none surely fits" if limit.value is None else f"{_value(limit.value)} surely fits{at}"
    if limit.beyond is None:
        return f"{fits}; none tried beyond"
    verdict = "" if limit.beyond_verdict is None else f"{limit.beyond_verdict}, {_bytes(limit.beyond_bytes)} "
    return f"{fits}; {_value(limit.beyond)} does not: {verdict}{limit.why}"


def _found(limit: FreeLimit) -> str:
    if limit.quantity == "cost":
        second = "" if limit.beyond is None else f"; the second place {limit.beyond:.4f}"
        return "none fits" if limit.value is None else f"{limit.value:.4f}{second}"
    fits = "none surely fits" if limit.value is None else f"{_value(limit.value)} surely fits"
    if limit.beyond is None:
        return f"{fits}; none tried beyond it"
    nearest = "" if limit.nearest_bytes is None else f"at least {format_bytes(limit.nearest_bytes)}, "
    return f"{fits}; {_value(limit.beyond)} does not: {nearest}{limit.why}"


def _exceptions(limit: Limit | FreeLimit, width: int) -> Iterator[Text]:
    """Line about tried values within the limit that do not fit."""
    if limit.exceptions:
        shown = ", ".join(map(_value, limit.exceptions[:_SHOWN]))
        more = f" and {len(limit.exceptions) - _SHOWN:,} more" if len(limit.exceptions) > _SHOWN else ""
        yield from _lines(f"  memory is not steady in it: {shown}{more} within this limit do not surely fit", width)


def _table(found: Sequence[Limit]) -> RenderableType:
    """Table with one row a scenario: the value that surely fits, the likely one, the value beyond and its peak."""
    words = QUANTITIES[found[0].quantity]
    table = plain_table(words, "surely", "likely", "at best", "peak", "next", left=("next",))
    for limit in found:
        batch = limit.keys.get("training.global_batch_size")
        name = limit.name if batch is None or limit.quantity == "global_batch" else (
            f"{limit.name}, global batch {batch:,}")
        table.add_row(plain(name), *(plain(_value(each)) for each in (limit.value, limit.likely, limit.possible)),
                      _bytes(limit.peak_bytes), plain(_beyond(limit)))
    return table


def _value(value: Value | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(num_bytes: int | None) -> str:
    return "" if num_bytes is None else format_bytes(num_bytes)


def _beyond(limit: Limit) -> str:
    if limit.problem:
        return "refused with every value"
    if limit.beyond is None:
        return "none tried beyond"
    if limit.beyond_verdict is None:
        return f"{_value(limit.beyond)}: refused"
    return f"{_value(limit.beyond)}: {limit.beyond_verdict}, {_bytes(limit.beyond_bytes)}"
