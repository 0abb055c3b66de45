"""The verdict of a scenario: a badge of a sign, a word and a colour, and bars that show how full the device is."""

from __future__ import annotations

from typing import Final

from simcore.results.report import Report
from simcore.units import format_bytes
from viz.markup import Markup, element

__all__ = ["device_fill", "verdict", "verdict_bar", "verdict_key", "verdict_share"]

_VERDICTS: Final = {
    "fits": ("\u2713", "Fits", "good"),
    "unsure": ("?", "Unsure", "warn"),
    "oom": ("\u2715", "Out of memory", "bad"),
    "illegal": ("\u26a0", "Illegal layout", "warn"),
    "error": ("\u26a0", "Could not be answered", "warn"),
    "none": ("\u2013", "No verdict", "plain"),
}


def verdict_key(report: Report) -> str:
    """Returns one word for a report: `fits`, `unsure`, `oom`, `illegal`, `error`; `none` without a verdict."""
    return report.status if report.status != "ok" else report.job_verdict or "none"


def verdict(report: Report) -> Markup:
    """Returns the verdict as an HTML badge: a sign and words such as "Fits", in a colour."""
    sign, word, css_class = _VERDICTS[verdict_key(report)]
    return element("strong", element("span", sign, aria_hidden="true"), " ", word, class_=f"verdict {css_class}")


def verdict_bar(report: Report) -> Markup:
    """Returns a bar for a row of a table: fill of the fullest device in percent, with the verdict's sign.

    Without a peak or a capacity the badge of `verdict`.
    """
    used, capacity = report.highest_bytes, report.capacity_bytes
    if used is None or not capacity:
        return verdict(report)
    sign, word, css_class = _VERDICTS[verdict_key(report)]
    scale = max(used, capacity)
    parts = (element("rect", x="0", y="3", width="100%", height=10, rx=2, class_="room"),
             element("rect", x="0", y="3", width=f"{100 * used / scale:.1f}%", height=10, rx=2, class_="used"),
             element("line", x1=f"{100 * capacity / scale:.1f}%", x2=f"{100 * capacity / scale:.1f}%", y1="0", y2="16",
                     class_="end"))
    bar = element("svg", *parts, class_="fill", width=84, height=16, aria_hidden="true")
    return element("span", element("span", sign, class_="sign", aria_hidden="true"), bar,
                   element("span", f" {used / capacity:.0%}", class_="share"),
                   element("span", f" {word}", class_="unseen"), class_=f"verdict-bar {css_class}")


def verdict_share(used: int, capacity: int, verdict_word: str) -> Markup:
    """Returns the sign of a verdict (`verdict_key`) and the share that `used` bytes have of `capacity`, in percent.

    It is for tables of thousands of rows, in which bars take a browser seconds.
    """
    sign, word, css_class = _VERDICTS[verdict_word]
    return element("span", element("span", sign, class_="sign", aria_hidden="true"), f" {used / max(capacity, 1):.0%}",
                   element("span", f" {word}", class_="unseen"), class_=f"verdict-bar {css_class}")


def device_fill(report: Report) -> Markup | None:
    """Draws a bar of the fullest device at its peak: allocated memory, all memory in use, capacity.

    None without a peak or a capacity.
    """
    peak = report.peak_rank.peak if report.peak_rank else None
    if peak is None or not report.capacity_bytes:
        return None
    scale = max(peak.device_bytes, report.capacity_bytes)
    allocated, used, end = (f"{100 * n / scale:.2f}%" for n in (peak.allocated_bytes, peak.device_bytes,
                                                                report.capacity_bytes))
    bars = (element("rect", width="100%", height=12, rx=3, class_="room"),
            element("rect", width=used, height=12, rx=3, class_="used"),
            element("rect", width=allocated, height=12, rx=3, class_="allocated"),
            element("line", x1=end, x2=end, y1=-4, y2=16, class_="end"))
    words = (f"Of {format_bytes(report.capacity_bytes)}, {format_bytes(peak.allocated_bytes)} allocated, "
             f"{format_bytes(peak.device_bytes)} needed in all")
    return element("svg", element("title", words), *bars, class_="fill", role="img", width="100%", height=12)
