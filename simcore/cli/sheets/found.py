"""Tables of what a search found: the ranking, the Pareto set, and the counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from simcore.cli.sheets.tables import plain, plain_table
from simcore.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from simcore.results.found import FoundLayout, SearchCounts, SearchResult

__all__ = ["answer"]

_SHOWN: Final = 5
"""Rules of refused layouts that are listed, by the number of layouts."""
_MOST: Final = 12
"""Layouts of the Pareto set that are listed."""
_HEAD: Final = ("framework", "framework_version", "framework_options", "implementation", "topology")


def answer(result: SearchResult) -> Iterator[RenderableType]:
    """Lines and tables about one search."""
    from simcore.search.objective import OBJECTIVES

    words = OBJECTIVES[result.objectives[0]].words
    counts = result.counts
    if not result.best:
        yield Text(plain(f"{result.name}: no layout fits, of {counts.candidates:,}"))
    else:
        yield Text(plain(f"{result.name}: {words}, of {counts.candidates:,} layouts"))
        yield _table(result.best, numbered=True)
        also = [one for one in result.pareto if one not in result.best]
        names = " and ".join(OBJECTIVES[name].words for name in result.objectives)
        if also:
            shown = _spread(also)
            more = f", {len(shown)} of {len(also)} shown" if len(shown) < len(also) else ""
            yield Text(plain(f"also in the Pareto set of {names}{more}"))
            yield _table(shown, numbered=False)
    yield Text(_counted(counts))
    for rule in result.refused[:_SHOWN]:
        yield Text(plain(f"  {rule.count:,} {rule.status}: {rule.message.removeprefix('not yet: ')}"))
    if len(result.refused) > _SHOWN:
        yield Text(f"  {len(result.refused) - _SHOWN} more rules: --json lists all")
    yield Text("")


def _spread(layouts: Sequence[FoundLayout]) -> list[FoundLayout]:
    """At most `_MOST` of the layouts, evenly taken, first and last among them."""
    if len(layouts) <= _MOST:
        return list(layouts)
    return [layouts[round(place * (len(layouts) - 1) / (_MOST - 1))] for place in range(_MOST)]


def _table(layouts: Sequence[FoundLayout], *, numbered: bool) -> Table:
    """One row a layout; columns that are the same in all rows are left out."""
    many = len({one.framework for one in layouts}) > 1, len({one.topology for one in layouts}) > 1
    priced = any(one.usd_per_million_tokens is not None for one in layouts)
    gpus = "GPUs, engines'" if any(one.engine_gpus for one in layouts) else "GPUs"
    heads = [*(["framework"] if many[0] else []), *(["topology"] if many[1] else []), gpus, "layout", "other keys",
             "verdict", "peak", "step", "tokens/s/GPU", *(["USD/M tok"] if priced else []), "evidence"]
    table = plain_table("" if not numbered else "#", *heads,
                        left=("framework", "topology", "layout", "other keys", "verdict", "evidence"))
    for place, one in enumerate(layouts, start=1):
        mark = f"{place}{'*' if one.is_pareto else ''}" if numbered else "*"
        cost = "" if one.usd_per_million_tokens is None else f"{one.usd_per_million_tokens:.3f}"
        table.add_row(
            mark, *([plain(one.framework)] if many[0] else []), *([plain(one.topology)] if many[1] else []),
            _gpus(one), plain(one.layout), plain(_others(one.keys)), one.verdict, format_bytes(one.peak_bytes),
            format_seconds(one.step_s), f"{one.tokens_per_s_per_gpu:,.0f}", *([cost] if priced else []), one.evidence)
    return table


def _gpus(one: FoundLayout) -> str:
    """GPUs that train, and after a plus those of engines beside them."""
    return f"{one.num_gpus:,} + {one.engine_gpus:,}" if one.engine_gpus else f"{one.num_gpus:,}"


def _others(keys: dict[str, Any]) -> str:
    """Keys beside degrees, framework and machine, by their last word."""
    return " ".join(f"{_short(key)}={_spelled(value)}" for key, value in keys.items()
                    if key not in _HEAD and not key.startswith("mesh.") and key != "topology.num_nodes")


def _short(key: str) -> str:
    return {"training.micro_batch_size": "mbs"}.get(key, key.removeprefix("framework_options.").rpartition(".")[2])


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _counted(counts: SearchCounts) -> str:
    """One line with what became of all candidates."""
    parts = [(counts.refused, "refused"), (counts.at_rest, "too large at rest"), (counts.oom, "out of memory"),
             (counts.unsure, "unsure (--unsure fits ranks them)"), (counts.excluded, "excluded by --where"),
             (counts.slower, "fit, slower by a proven bound"), (counts.alike, "the same as another"),
             (counts.ranked, "fit and timed")]
    return "; ".join(f"{number:,} {words}" for number, words in parts if number)
