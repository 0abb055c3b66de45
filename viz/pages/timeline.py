"""The figure of streams: names of lanes on the left, a frame that zooms on the right, the legend below."""

from __future__ import annotations

from simcore.results.report import Report
from simcore.units import format_seconds
from viz.charts.lanes import drawn_classes, lane_entries, lane_names, lanes
from viz.charts.legend import legend
from viz.markup import Markup, element

__all__ = ["timeline"]


def timeline(report: Report, identity: str, title: str, until_s: float | None = None) -> Markup | None:
    """Returns the figure of streams over time, with its legend; None where the report has no spans.

    `identity`: begin of the ids in it, unique on the page. `until_s`: end of the frame in s, to compare reports; None:
    the end of this step.
    """
    drawing = lanes(report, identity, until_s)
    if drawing is None:
        return None
    frame = element("div", element("div", drawing, class_="wider"), class_="zoom", tabindex=0, role="region",
                    aria_label=f"{title}; plus and minus zoom, arrows scroll")
    caption = element("figcaption", title, _buttons())
    streams = element("div", element("div", lane_names(report), class_="lane-names"), frame, class_="streams")
    return element("figure", caption, streams, legend(lane_entries(report), "Key of the streams"), _note(report),
                   class_="timeline")


def _buttons() -> Markup:
    pairs = (("\u2212", "zoom out"), ("+", "zoom in"), ("whole step", "whole step"))
    return element("span", *(element("button", sign, type="button", aria_label=words, data_zoom=words)
                             for sign, words in pairs), class_="zooms", hidden=True)


def _note(report: Report) -> Markup | None:
    """Returns a note of the step time, and of the microbatches and classes of ranks that are not drawn."""
    detail = report.detail
    if detail is None or report.time is None or detail.end_s is None:
        return None
    text = f"The step takes {format_seconds(report.time.step_s)}."
    if detail.written_out < detail.num_microbatches:
        text += (f" Drawn are {detail.written_out:,} of {detail.num_microbatches:,} microbatches, in "
                 f"{format_seconds(detail.end_s)}: the others repeat steady ones.")
    if len(report.ranks) > len(drawn_classes(report)):
        text += f" Drawn are {len(drawn_classes(report))} of {len(report.ranks):,} classes of ranks."
    return element("p", text, class_="note")
