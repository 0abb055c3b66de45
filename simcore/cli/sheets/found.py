"""Tables of what a search found: the ranking, the Pareto set, and the counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from simcore.cli.sheets.grid import wrapped
from simcore.cli.sheets.tables import plain, plain_table
from simcore.units import format_bytes, format_seconds, in_gib

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcore.cli.sheets.word_table import WordTable
    from simcore.results.found import FoundLayout, SearchCounts, SearchResult

__all__ = ["answer", "counted_lines"]

_SHOWN: Final = 5
"""Rules of refused layouts that are listed, by the number of layouts."""
_MOST: Final = 12
"""Layouts of the Pareto set that are listed."""
_DEGREE: Final = re.compile(r"(\w+) (\d+)")
"""Axis of a layout and its degree."""
_HEAD: Final = ("framework", "framework_version", "framework_options", "implementation", "topology")


def answer(result: SearchResult, width: int) -> Iterator[RenderableType]:
    """Lines and tables about one search, for a terminal of `width` characters."""
    for part in _parts(result, width):
        if isinstance(part, str):
            yield from _lines(part, width)
        else:
            yield part
    yield from counted_lines(result, width)


def counted_lines(result: SearchResult, width: int) -> Iterator[Text]:
    """Lines with what became of all candidates, and the rules that refuse most."""
    yield from _lines(_counted(result.counts), width)
    for rule in result.refused[:_SHOWN]:
        yield from _lines(f"  {rule.count:,} {rule.status}: {rule.message.removeprefix('not yet: ')}", width)
    if len(result.refused) > _SHOWN:
        yield from _lines(f"  {len(result.refused) - _SHOWN} more rules: --json lists all", width)
    yield Text()


def _lines(text: str, width: int) -> Iterator[Text]:
    """Lines of a text, further ones indented."""
    yield from map(Text, wrapped(plain(text), width, "    "))


def _parts(result: SearchResult, width: int) -> Iterator[str | RenderableType]:
    """Tables of the ranking and of the Pareto set, and texts of one line each."""
    from simcore.search.objective import OBJECTIVES

    if not result.best:
        yield f"{result.name}: no layout fits, of {result.counts.candidates:,}"
        return
    yield f"{result.name}: {OBJECTIVES[result.objectives[0]].words}, of {result.counts.candidates:,} layouts"
    yield from _table(dict(enumerate(result.best, start=1)), width)
    also = [(place, one) for place, one in enumerate(result.ranked, start=1)
            if one.is_pareto and place > len(result.best)]
    if also:
        names = " and ".join(OBJECTIVES[name].words for name in result.objectives)
        shown = _spread(also)
        more = f", {len(shown)} of {len(also)} shown" if len(shown) < len(also) else ""
        yield f"also in the Pareto set of {names}{more}"
        yield from _table(dict(shown), width)


def _spread(layouts: Sequence[tuple[int, FoundLayout]]) -> list[tuple[int, FoundLayout]]:
    """At most `_MOST` of the layouts with their places, evenly taken, first and last among them."""
    if len(layouts) <= _MOST:
        return list(layouts)
    return [layouts[round(place * (len(layouts) - 1) / (_MOST - 1))] for place in range(_MOST)]


def _table(ranked: Mapping[int, FoundLayout], width: int) -> Iterator[str | RenderableType]:
    """One row a layout, by its place in the ranking.

    It has a column for each thing where `width` holds that, else one column for all that makes a layout.
    """
    wide = _wide(ranked)
    if wide.width <= width:
        yield wide
    else:
        yield from _narrow(ranked)


def _wide(ranked: Mapping[int, FoundLayout]) -> WordTable:
    """Columns of frameworks and machines that are the same in all rows are left out."""
    layouts = [*ranked.values()]
    many = _varies(layouts, "framework"), _varies(layouts, "topology")
    priced = _is_priced(layouts)
    heads = [*(["framework"] if many[0] else []), *(["topology"] if many[1] else []), _gpus_head(layouts), "layout",
             "other keys", "verdict", "peak", "step", "tokens/s/GPU", *(["USD/M tok"] if priced else []), "evidence"]
    table = plain_table("#", *heads, left=("framework", "topology", "layout", "other keys", "verdict", "evidence"))
    for place, one in ranked.items():
        table.add_row(
            _mark(one, place), *([plain(one.framework)] if many[0] else []),
            *([plain(one.topology)] if many[1] else []), _gpus(one), plain(one.layout), plain(_others(one.keys)),
            one.verdict, format_bytes(one.peak_bytes), format_seconds(one.step_s), f"{one.tokens_per_s_per_gpu:,.0f}",
            *([_cost(one)] if priced else []), one.evidence)
    return table


def _narrow(ranked: Mapping[int, FoundLayout]) -> Iterator[str | RenderableType]:
    """Table whose texts wrap between keys; lines below it have the evidence, and what all of several rows share."""
    layouts = [*ranked.values()]
    heads = [name for name in ("framework", "topology") if len(layouts) == 1 or _varies(layouts, name)]
    priced, judged = _is_priced(layouts), len(layouts) == 1 or _varies(layouts, "verdict")
    table = plain_table("#", "layout", _gpus_head(layouts), *(["verdict"] if judged else []), "peak GiB", "step",
                        "tokens/s per GPU", *(["USD/M tokens"] if priced else []), left=("layout", "verdict"))
    for place, one in ranked.items():
        keys = " ".join((*(getattr(one, name) for name in heads), _DEGREE.sub(r"\1=\2", one.layout),
                         _others(one.keys)))
        table.add_row(
            _mark(one, place), plain(keys), _gpus(one), *([one.verdict] if judged else []), in_gib(one.peak_bytes),
            format_seconds(one.step_s), f"{one.tokens_per_s_per_gpu:,.0f}", *([_cost(one)] if priced else []))
    yield table
    shared = [name for name in ("framework", "topology") if name not in heads] + ([] if judged else ["verdict"])
    if shared:
        yield f"all: {', '.join(f'{name} {getattr(layouts[0], name)}' for name in shared)}"
    yield f"evidence: {_by_kind({place: one.evidence for place, one in ranked.items()})}"
    yield ""


def _by_kind(kinds: Mapping[int, str]) -> str:
    """Places of each kind, such as `1, 4 recipe; others none`, the most frequent last and without its places."""
    (most, number), *rest = Counter(kinds.values()).most_common()
    told = [f"{', '.join(str(place) for place, each in kinds.items() if each == kind)} {kind}" for kind, _ in rest]
    return "; ".join((*told, f"{'others' if rest else 'all' if number > 1 else ''} {most}".strip()))


def _varies(layouts: Sequence[FoundLayout], name: str) -> bool:
    return len({getattr(one, name) for one in layouts}) > 1


def _is_priced(layouts: Sequence[FoundLayout]) -> bool:
    return any(one.usd_per_million_tokens is not None for one in layouts)


def _mark(one: FoundLayout, place: int) -> str:
    """Place in the ranking, and a star in the Pareto set."""
    return f"{place}{'*' if one.is_pareto else ''}"


def _cost(one: FoundLayout) -> str:
    return "" if one.usd_per_million_tokens is None else f"{one.usd_per_million_tokens:.3f}"


def _gpus_head(layouts: Sequence[FoundLayout]) -> str:
    return "GPUs, engines'" if any(one.engine_gpus for one in layouts) else "GPUs"


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
