"""Runs whose own reading shows that something else ran than their configuration says, beside that configuration.

Such a run is judged nowhere: with the switch that its reading suggests, the comparison would confirm itself. Its error
by the configuration as it was published is told apart, a line for each thing that was inferred.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from simcore.validation.runs import Measured
from simcore.validation.tolerance import median

__all__ = ["AsPublished", "as_published", "with_published"]


class AsPublished(BaseModel):
    """Runs of which the same was inferred (`inferred`) from their readings, with errors of what was published.

    `memory`, `time`: median errors without their sign, as shares, of `num_memory` peaks of allocated memory and of
    `num_time` step times, None without any; `memory_bias`, `time_bias`: the median errors with their sign. `rows`: ids.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inferred: str
    groups: tuple[str, ...]
    rows: tuple[str, ...]
    num_memory: int
    memory: float | None
    memory_bias: float | None
    num_time: int
    time: float | None
    time_bias: float | None


def with_published(measured: Iterable[Measured]) -> list[Measured]:
    """Runs of which something was inferred from their readings, each with its configuration's scenario as its own."""
    return [replace(row, entry=row.published) for row in measured if row.published]


def as_published(measured: Sequence[Measured], memory: Iterable[tuple[str, float]], time: Iterable[tuple[str, float]]
                 ) -> list[AsPublished]:
    """A line for each thing that was inferred, in order of its text.

    `measured`: runs as `with_published` gives them. `memory`, `time`: (id of a run, error of its scenario with its
    sign, as a share), of peaks of allocated memory and of step times.
    """
    peaks, laps = list(memory), list(time)
    texts = sorted({row.row.not_modelled or "" for row in measured})
    return [_line(text, [row for row in measured if row.row.not_modelled == text], peaks, laps) for text in texts]


def _line(inferred: str, rows: Sequence[Measured], memory: Sequence[tuple[str, float]],
          time: Sequence[tuple[str, float]]) -> AsPublished:
    ids = {row.row.id for row in rows}
    peaks, laps = ([error for row, error in errors if row in ids] for errors in (memory, time))
    return AsPublished(
        inferred=inferred, groups=tuple(sorted({row.row.group for row in rows})),
        rows=tuple(row.row.id for row in rows),
        num_memory=len(peaks), memory=median([abs(error) for error in peaks]), memory_bias=median(peaks),
        num_time=len(laps), time=median([abs(error) for error in laps]), time_bias=median(laps))
