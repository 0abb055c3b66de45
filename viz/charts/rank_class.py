"""A class of ranks as charts need it: the fullest one, its details, its letter, its memory by part of the model."""

from __future__ import annotations

from simcore.results.detail import ClassDetail
from simcore.results.report import RankReport, Report
from viz.charts.stack import peak_index

__all__ = ["by_part", "class_detail", "class_letter", "fullest_class"]


def fullest_class(report: Report) -> RankReport | None:
    """Returns the class of ranks with the highest peak, which decides the verdict.

    Without peaks the first class; None without ranks.
    """
    return report.peak_rank or (report.ranks[0] if report.ranks else None)


def class_detail(report: Report, rank: RankReport) -> ClassDetail | None:
    """Returns the details (tensors, owners, spans) of `rank`, one of `report.ranks`; None without any."""
    number = next(n for n, other in enumerate(report.ranks) if other is rank)
    return report.detail.classes[number] if report.detail and number < len(report.detail.classes) else None


def by_part(rank: RankReport, detail: ClassDetail) -> RankReport:
    """Returns `rank` with its memory over the step and at the peak by part of the model, not category.

    The same charts can then draw it; parts stand in the place of categories. Unchanged without a peak, or if there is
    no such memory in `detail`.
    """
    series = detail.by_part
    if series is None or rank.peak is None or not series.event_index:
        return rank
    sample = peak_index(series)
    sizes = {name: values[sample] for name, values in zip(series.categories, series.values, strict=True)}
    return rank.model_copy(update={"memory": series, "peak": rank.peak.model_copy(update={"by_category": sizes})})


def class_letter(number: int) -> str:
    """Returns the letter of class number `number`, from 0: A, B, ... Z, AA, AB."""
    return chr(65 + number) if number < 26 else class_letter(number // 26 - 1) + class_letter(number % 26)
