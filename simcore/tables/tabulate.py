"""Results as a table: one row a scenario, or one row a class of ranks.

Columns that every table has come first and in one order (`fields.py`, then all keys of the scenario, `key_fields.py`);
those that only some batches have follow, sorted: parts of keys whose values differ (spelled as `--set` takes them),
bytes sent by collective and axis.

    python -m simcore.tables.tabulate > docs/columns.md
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from simcore.docgen.glossary import table as markdown
from simcore.results.compare import worst_rank
from simcore.results.frame import Field, Frame, flat, frame
from simcore.results.report import AtRest, Peak, RankReport, Report
from simcore.tables.fields import RANK_FIELDS, SCENARIO_FIELDS, OneClass
from simcore.tables.key_fields import KEY_FIELDS

__all__ = ["ROW_FIELDS", "columns_page", "table"]

ROW_FIELDS: Final[tuple[Field[Report], ...]] = (*SCENARIO_FIELDS, *KEY_FIELDS)
"""Columns of a scenario's row in every table: what it is and came to, then all keys that make it."""

_ALWAYS: Final = ("name", "workload", "model", "framework", "topology", "training.method", "mesh")
"""Keys of a scenario that have a fixed column, or are the row's name."""

_FIXED: Final = frozenset(field.column.name for field in SCENARIO_FIELDS)
_KEYS: Final = frozenset(field.column.name for field in KEY_FIELDS)


def table(results: Iterable[Report] | Report, *, ranks: bool = False) -> Frame:
    """Table of results: one row per scenario, or with `ranks` per class of ranks (equal memory and work).

    Fixed columns come first (`ROW_FIELDS`); then sorted ones: parts of keys that differ (scenarios only), bytes at rest
    and at the peak (ranks only), bytes that one rank sends in a step by collective and axis (scenarios: of the worst
    class).
    """
    reports = [results] if isinstance(results, Report) else list(results)
    if ranks:
        classes = [OneClass(report, n, rank) for report in reports for n, rank in enumerate(report.ranks)]
        return frame("ranks", RANK_FIELDS, classes, _of_classes(classes))
    return frame("scenarios", ROW_FIELDS, reports,
                 _keys(reports) | _sent([worst_rank(report) for report in reports]))


def _keys(reports: Sequence[Report]) -> dict[str, tuple[str, list[Any]]]:
    """Columns of the parts of keys whose values differ, such as options of a framework, by name."""
    every = [dict(flat(report.scenario)) for report in reports]
    names = sorted({name for keys in every for name in keys})
    columns = {name: [keys.get(name) for keys in every] for name in names if not _is_known(name)}
    return {_apart(name): ("a key of the scenario", values) for name, values in columns.items()
            if any(value != values[0] for value in values)}


def _apart(name: str) -> str:
    """Name of a key's column, changed if a fixed column has it, because names must be unique for any result."""
    return f"scenario.{name}" if name in _FIXED or name.startswith("sent_") else name


def _is_known(name: str) -> bool:
    return name in _ALWAYS or name in _KEYS or name.startswith("mesh.")


def _sent(ranks: Sequence[RankReport | None]) -> dict[str, tuple[str, list[Any]]]:
    """Columns of the bytes that leave a rank in one step, by collective and axis."""
    return _counted([_wires(rank) if rank and rank.peak else None for rank in ranks],
                    "what leaves the rank in one step, by collective and axis")


def _wires(rank: RankReport) -> Counter[str]:
    sent: Counter[str] = Counter()
    for row in rank.traffic:
        sent[f"sent_{row.collective}_{row.axis}_bytes"] += row.wire_bytes
    return sent


def _of_classes(classes: Sequence[OneClass]) -> dict[str, tuple[str, list[Any]]]:
    ranks = [row.rank for row in classes]
    at_rest = [{f"at_rest_{name}_bytes": _bytes(at) for name, at in rank.at_rest.items()} for rank in ranks]
    peaks = [None if rank.peak is None else _there(rank.peak) for rank in ranks]
    return (_counted(at_rest, "at rest, of this component") | _counted(peaks, "at the highest moment, of this category")
            | _sent(ranks))


def _there(peak: Peak) -> dict[str, int]:
    return {f"peak_{name}_bytes": size for name, size in (peak.by_category | peak.outside).items()}


def _bytes(at: AtRest) -> int:
    return at.params_bytes + at.grads_bytes + at.optimizer_bytes


def _counted(sums: Sequence[Mapping[str, int] | None], words: str) -> dict[str, tuple[str, list[Any]]]:
    """Columns of sums: 0 for a rank that has none of it, empty for an unknown rank."""
    names = sorted({name for row in sums for name in row or ()})
    return {name: (words, [None if row is None else row.get(name, 0) for row in sums]) for name in names}


# ---- the page -------------------------------------------------------------------------------------------------------
_HEAD: Final = """# Columns

Made by `python -m simcore.tables.tabulate`; edit that, not this page. They are the columns of `rankscope export csv`
and `parquet`, of `table(results)` in a notebook, of `run --sort` and `--columns`, and those that `rankscope query`
asks ([query](query.md)). What is not known is empty, never zero. Types are those of Parquet; a CSV file holds the same,
as text. A unit is in the name: `_bytes`, `_s`, `_usd`; shares go from 0 to 1. Of one batch,
columns always come in one order; the last ones are there only where they have something to say.

    rankscope run sweep.yaml -o results                            # a batch; or export takes the scenarios themselves
    rankscope export csv results -o batch.csv                      # a row a scenario
    rankscope export parquet results --table ranks -o ranks.parquet    # a row a class of ranks: rankscope[parquet]

In a CSV file a text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-` or `@`) has an apostrophe
before that sign; in Parquet it is as it was. Control characters are replaced in both."""
_FURTHER: Final = {
    "scenarios": (("`framework_options.prefetch`, any part of a key", "int64, float64, bool or string",
                   "where it differs in the batch, as `--set` spells it"),
                  ("`sent_COLLECTIVE_AXIS_bytes`", "int64", "what leaves the rank in one step")),
    "ranks": (("`at_rest_COMPONENT_bytes`", "int64", "parameters, gradients and optimizer states of a component"),
              ("`peak_CATEGORY_bytes`", "int64", "at the highest moment, what lies beside the allocator too"),
              ("`sent_COLLECTIVE_AXIS_bytes`", "int64", "what leaves the rank in one step"))}


def columns_page() -> str:
    """Markdown text of `docs/columns.md`: name, type and meaning of every column of both tables (scenarios, ranks)."""
    parts = [_HEAD]
    for kind, fields in (("scenarios", ROW_FIELDS), ("ranks", RANK_FIELDS)):
        rows = [(f"`{field.column.name}`", field.column.dtype, field.column.words) for field in fields]
        parts += [f"## `--table {kind}`", markdown(("column", "type", "is"), [*rows, *_FURTHER[kind]])]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(columns_page())
