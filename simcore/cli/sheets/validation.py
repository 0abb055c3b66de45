"""Tables of a comparison with measured runs: memory, step times, and runs that are not compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import RenderableType

from simcore.cli.sheets.tables import plain, plain_table
from simcore.cli.sheets.word_table import WordTable
from simcore.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from simcore.validation.as_published import AsPublished
    from simcore.validation.gaps import NotCompared
    from simcore.validation.left_out import GroupLeftOut
    from simcore.validation.noise import Noise
    from simcore.validation.step_times import Timed, TimingSummary
    from simcore.validation.tolerance import Judged
    from simcore.validation.validate import Compared, Summary, Validation, Verdicts

__all__ = ["validation"]

_REASON: Final = 110
"""Characters of a reason."""


def validation(found: Validation) -> list[RenderableType]:
    """Tables of a comparison with measured runs: of memory, then, if it has timed runs, of step time.

    Of each: errors by group, worst cases, tolerances; of memory also verdicts, of step time the groups that were left
    out of the fit. Last every run that is not compared, by its reason, and those that did not run as published.
    """
    shown: list[RenderableType] = [_errors(found.summaries), _told(found.verdicts), _worst(found.worst),
                                   _tolerances(found.judged)]
    time = found.time
    if time.summaries:
        shown += [_laps(time.summaries), _worst_laps(time.worst), _tolerances(time.judged)]
    if time.together:
        shown.append(_together(time.together, {noise.source: noise for noise in time.noise}))
    shown.append(_not_compared(found.not_compared))
    return [*shown, _as_published(found.as_published)] if found.as_published else shown


def _laps(summaries: Sequence[TimingSummary]) -> WordTable:
    words = ("group", "topology", "precision", "of row")
    heads = ("rows", "distinct", "modelled", "told oom", "left out", "90 %", "bias", "fitted", "fitted 90 %",
             "repeated", "equal", "group out", "GPU out", "worst")
    table = plain_table("step time", *words[:-1], *heads, words[-1], left=words)
    for summary in summaries:
        counts = summary.num_rows, summary.num_distinct, summary.num_modelled, summary.num_oom
        noise = summary.noise
        table.add_row(summary.kind, summary.group, plain(summary.topology), summary.precision, *map(str, counts),
                      *map(_percent, (summary.left_out, summary.left_out_90)), _signed(summary.left_out_bias),
                      *map(_percent, (summary.median, summary.percentile_90)),
                      *map(_percent, (noise.repeated, noise.equal) if noise else (None, None)),
                      *map(_percent, (summary.group_left_out, summary.topology_left_out)), _signed(summary.worst_error),
                      plain(summary.worst))
    return table


def _together(groups: Sequence[GroupLeftOut], noise: dict[str, Noise]) -> WordTable:
    """Groups that were left out of the fit, each by itself."""
    words = ("model family", "machine", "factors that rest on it alone")
    table = plain_table("left out together", *words[:2], "configurations", "left out", "fitted", "worst", "noise",
                        words[2], left=words)
    for group in groups:
        floor = noise[group.source].floor if group.source in noise else None
        alone = f"{len(group.alone)}: {', '.join(group.alone)}" if group.alone else "0"
        table.add_row(group.source, group.family, group.machine, str(group.configurations),
                      *map(_percent, (group.left_out, group.fitted, group.worst, floor)), alone)
    return table


def _worst_laps(worst: Sequence[Timed]) -> WordTable:
    table = plain_table("worst step time", "release", "measured", "simulated", "error", "left out")
    for row in worst:
        table.add_row(plain(row.rows[0]), plain(row.release or ""), format_seconds(row.measured_s),
                      format_seconds(row.simulated_s), *map(_signed, (row.error, row.left_out_error)))
    return table


def _errors(summaries: Sequence[Summary]) -> WordTable:
    heads = ("quantity", "readings", "distinct", "modelled", "median", "90 %", "bias", "noise", "worst", "of row")
    table = plain_table("group", *heads, left=("quantity", "of row"))
    for summary in summaries:
        counts = summary.num_readings, summary.num_distinct, summary.num_modelled
        table.add_row(summary.group, summary.quantity, *map(str, counts),
                      *map(_percent, (summary.median, summary.percentile_90)), _signed(summary.bias),
                      _percent(summary.noise), _signed(summary.worst_error), plain(summary.worst))
    return table


def _told(verdicts: Sequence[Verdicts]) -> WordTable:
    table = plain_table("measured", "told fits", "told unsure", "told oom", "not modelled", "wrong", left=("wrong",))
    for row in verdicts:
        table.add_row(row.measured, *map(str, (row.told_fits, row.told_unsure, row.told_oom, row.not_modelled)),
                      plain(", ".join(row.wrong)))
    return table


def _worst(worst: Sequence[Compared]) -> WordTable:
    table = plain_table("worst", "quantity", "rank", "measured", "simulated", "error", left=("quantity",))
    for row in worst:
        table.add_row(plain(row.rows[0]), row.quantity, str(row.rank), format_bytes(row.measured_bytes),
                      format_bytes(row.simulated_bytes), _signed(row.error))
    return table


def _not_compared(gaps: Sequence[NotCompared]) -> WordTable:
    """Table of every reason, a line each; `--json` has their texts in full, and the runs."""
    table = plain_table("not compared, because", "rows", "memory", "time", "groups", left=("groups",))
    for gap in gaps:
        reason = gap.reason if len(gap.reason) <= _REASON else f"{gap.reason[:_REASON - 3]}..."
        table.add_row(plain(reason), *map(str, (gap.num_rows, gap.num_memory, gap.num_time)),
                      plain(", ".join(gap.groups)))
    return table


def _as_published(lines: Sequence[AsPublished]) -> WordTable:
    """Table of runs of which something was inferred from the reading itself, with the error of what was published."""
    table = plain_table("inferred from the reading, error as published", "rows", "peaks", "median", "bias", "times",
                        "median", "bias", "groups", left=("groups",))
    for line in lines:
        table.add_row(plain(line.inferred), str(len(line.rows)), str(line.num_memory), _percent(line.memory),
                      _signed(line.memory_bias), str(line.num_time), _percent(line.time), _signed(line.time_bias),
                      plain(", ".join(line.groups)))
    return table


def _tolerances(judged: Sequence[Judged]) -> WordTable:
    """Table of tolerances with the noise of what was measured; those of step times have the value of the whole fit."""
    timed = any(row.fitted is not None for row in judged)
    table = plain_table("tolerance", "observations", "allowed", *(("left out", "fitted") if timed else ("found",)),
                        "noise", "known of", "")
    for row in judged:
        values = (row.found, row.fitted) if timed else (row.found,)
        table.add_row(row.what, str(row.num), *map(_percent, (row.allowed, *values, row.noise)),
                      "" if row.noise_share is None else f"{row.noise_share:.0%}",
                      "kept" if row.is_kept else "NOT KEPT")
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _signed(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"
