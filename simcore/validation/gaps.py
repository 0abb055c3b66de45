"""Reasons why measured runs are not compared, counted: the most frequent first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

__all__ = ["Gap", "NotCompared", "gaps_of", "not_compared"]


class Gap(BaseModel):
    """One reason why measured runs have no simulated answer, for `num_rows` runs of `groups` (sorted names).

    `rows`: ids of these runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: str
    num_rows: int
    groups: tuple[str, ...]
    rows: tuple[str, ...]


class NotCompared(Gap):
    """One reason of memory and of time together: a run counts once.

    `num_memory`: runs whose memory is not compared for this reason; `num_time`: whose step time is not. Both are 0 for
    runs that were set aside with what they print.
    """

    num_memory: int
    num_time: int


def gaps_of(lacking: Iterable[tuple[str, str, str]]) -> list[Gap]:
    """Gaps of (reason, group, id) of runs, the most frequent reasons first; a run counts under each of its reasons."""
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for reason, group, row in lacking:
        rows[reason][row] = group
    gaps = [Gap(reason=reason, num_rows=len(found), groups=tuple(sorted({*found.values()})), rows=tuple(found))
            for reason, found in rows.items()]
    return sorted(gaps, key=lambda gap: -gap.num_rows)


def not_compared(memory: Iterable[Gap], time: Iterable[Gap], aside: Iterable[Gap]) -> list[NotCompared]:
    """Every run that is not compared under each of its reasons, the most frequent reasons first.

    `aside`: of runs with neither memory nor time.
    """
    found: dict[str, list[Gap | None]] = defaultdict(lambda: [None, None, None])
    for place, gaps in enumerate((memory, time, aside)):
        for gap in gaps:
            found[gap.reason][place] = gap
    made = [_joined(reason, *parts) for reason, parts in found.items()]
    return sorted(made, key=lambda one: -one.num_rows)


def _joined(reason: str, memory: Gap | None, time: Gap | None, aside: Gap | None) -> NotCompared:
    parts = [gap for gap in (memory, time, aside) if gap]
    rows = tuple(dict.fromkeys(row for gap in parts for row in gap.rows))
    return NotCompared(
        reason=reason, num_rows=len(rows), groups=tuple(sorted({group for gap in parts for group in gap.groups})),
        rows=rows, num_memory=memory.num_rows if memory else 0, num_time=time.num_rows if time else 0)
