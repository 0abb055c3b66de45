"""A page of the site as a parser sees it: ids, links, and how often each element is in its text."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

__all__ = ["ELEMENTS", "Parsed", "counted", "parsed"]

ELEMENTS = ("h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "tr", "th", "td", "pre", "p", "em", "strong", "img", "a")
"""Elements that Markdown makes."""
_EMPTY = re.compile(r"<tr>\s*(?:<td></td>\s*)+</tr>")
"""The row that the site's reader puts into a table without rows."""
_LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Parsed(HTMLParser):
    """Ids, links of `<a>`, addresses that the page loads, and elements inside of `<article>`, or of all of the text."""

    def __init__(self, text: str, *, is_article: bool = True) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.elements: Counter[str] = Counter()
        self.depth = 0 if is_article else 1
        self.feed(_EMPTY.sub("", text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        given = {name: value or "" for name, value in attrs}
        self.depth += tag == "article"
        self.ids += [given[name] for name in ("id", "name")[:1 + (tag == "a")] if given.get(name)]
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if given.get(_LOADED.get(tag, "")) and given.get("rel") not in ("next", "prev", "canonical"):
            self.loaded.append(given[_LOADED[tag]])
        if self.depth and tag in ELEMENTS and "headerlink" not in given.get("class", ""):
            self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """Notes the end of the text."""
        self.depth -= tag == "article"


@cache
def parsed(page: Path) -> Parsed:
    """A page of the site."""
    return Parsed(page.read_text(encoding="utf-8"))


def counted(html: str) -> Counter[str]:
    """Elements of a text without a page around it."""
    return Parsed(html, is_article=False).elements
