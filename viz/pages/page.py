"""The HTML page: self-contained, without network access or libraries, with a strict content security policy."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Final

from simcore.results.compare import Kept
from simcore.results.detail import MAX_DETAILED
from simcore.results.found import SearchResult
from simcore.results.report import Report
from viz.markup import Markup, element, join
from viz.pages.batch import batch
from viz.pages.comparison import comparison
from viz.pages.report import article
from viz.pages.search import search_section
from viz.palette import texture_definitions
from viz.stylesheet import stylesheet

__all__ = ["render", "render_comparison", "render_search"]

_STYLE: Final = stylesheet()
_SCRIPT: Final = files("viz.pages").joinpath("page.js").read_text(encoding="utf-8").strip()
_NOTE: Final = "1 GiB is 2\u00b3\u2070 bytes. \u201cAllocated\u201d is what the device\u2019s allocator has handed out."


def render(reports: Sequence[Report]) -> str:
    """Returns the HTML text of a page: one report in full, two side by side, more as scatters and a table.

    Two to eight reports are also there in full, folded.
    """
    return _page([report.name for report in reports], "rankscope report", _parts(reports))


def render_comparison(reports: Sequence[Report], kept: Sequence[Kept] = ()) -> str:
    """Returns the HTML text of a page with two or more reports side by side; up to eight are there in full, folded.

    `kept`: settings that some keep although all were to have those of one.
    """
    parts = (comparison(*reports, kept=kept), *_in_full(reports))
    return _page([report.name for report in reports], "rankscope comparison", parts)


def render_search(results: Sequence[SearchResult]) -> str:
    """Returns the HTML text of a page with the layouts that each search found: charts, filters, a table, counts."""
    sections = (search_section(result, f"s{n}") for n, result in enumerate(results, 1))
    return _page([result.name for result in results], "rankscope search", sections)


def _page(names: Sequence[str], title: str, parts: Iterable[Markup]) -> str:
    main = element("main", element("h1", title), *parts)
    textures = element("svg", texture_definitions(), class_="textures", width=0, height=0, aria_hidden="true")
    body = element("body", textures, main, element("footer", element("p", _NOTE)), element("script", Markup(_SCRIPT)))
    return f"<!DOCTYPE html>\n{element('html', _head(names), body, lang='en')}\n"


def _parts(reports: Sequence[Report]) -> Iterator[Markup]:
    if not reports:
        yield element("p", "There is no report to show.")
    elif len(reports) == 1:
        yield article(reports[0], 1)
    else:
        is_few = len(reports) <= MAX_DETAILED
        yield batch(reports, linked=is_few) if len(reports) > 2 else comparison(*reports)
        yield from _in_full(reports)


def _in_full(reports: Sequence[Report]) -> Iterator[Markup]:
    """Yields an article for each report, folded; none for many reports."""
    if len(reports) <= MAX_DETAILED:
        yield from (_folded(report, n, len(reports)) for n, report in enumerate(reports, 1))


def _folded(report: Report, ordinal: int, count: int) -> Markup:
    head = element("summary", element("span", f"Everything about {report.name}", dir="auto"))
    return element("details", head, article(report, ordinal, 1 / count), class_="whole")


def _head(names: Sequence[str]) -> Markup:
    words = join(names[:3], ", ") or "no reports"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", join((words, Markup(" \u00b7 rankscope")))),
        element("style", Markup(_STYLE)))


def _policy() -> str:
    """Returns the content security policy: nothing is loaded, and only the style and the script of the page may run."""
    return (f"default-src 'none'; style-src {_digest(_STYLE)}; script-src {_digest(_SCRIPT)}; "
            "base-uri 'none'; form-action 'none'")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
