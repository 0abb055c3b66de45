"""Pages in headless Chromium: what they ask for, what axe finds, and that none is wider than the screen."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from browser import Tab

KINDS = ("index", "pages", "tutorial/README", "tutorial/2-fit", "recipes", "studio", "options", "support", "models",
         "claims", "lint", "commands", "glossary", "query", "calibration", "scenarios/nano-ep4", "extending/framework",
         "decisions/README", "decisions/two-clocks", "CHANGELOG", "404")
"""Pages of each kind: prose, pictures, wide tables, much code, long lists, generated ones."""
SCREENS = [(1280, False), (1280, True), (390, False), (390, True)]


def violations(shown: Tab) -> list[list[str]]:
    """Rules of axe that the page in view breaks, each with the first element."""
    axe = Path(os.environ.get("AXE", ""))
    if not axe.is_file():
        pytest.skip("no axe-core: `make site-test` fetches it")
    shown.call("Runtime.evaluate", expression=axe.read_text(encoding="utf-8"))
    shown.run("Promise.all(document.getAnimations().map(one => one.finished.catch(() => 0)))")
    return list(json.loads(shown.run(
        "axe.run().then(found => JSON.stringify(found.violations.map(one => [one.id, one.nodes[0].html])))")))


@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_axe_finds_nothing(shown: Tab, address: str, width: int, dark: bool) -> None:
    found = {}
    for kind in KINDS:
        shown.open(f"{address}{kind}.html".replace("README", "index"), width, dark=dark)
        if told := violations(shown):
            found[kind] = told
    assert found == {}


def test_no_page_asks_another_address(shown: Tab, address: str, site: Path) -> None:
    shown.requests.clear()
    shown.complaints.clear()
    pages = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))
    for page in pages:
        shown.open(address + page)
    assert len(shown.requests) > len(pages)
    assert [asked for asked in shown.requests if not asked.startswith((address, "data:"))] == []
    assert shown.complaints == []


def test_search_finds_a_page_without_the_network(shown: Tab, address: str) -> None:
    shown.open(address + "index.html")
    shown.requests.clear()
    shown.run("document.querySelector('.md-search__input').focus()")
    for letter in "frontier":
        shown.press(letter)
    end = time.monotonic() + 30
    while not shown.run("document.querySelectorAll('.md-search-result__link').length"):
        assert time.monotonic() < end, shown.complaints
        time.sleep(0.1)
    found = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href).join()"
    assert "6-frontier" in shown.run(found)
    assert violations(shown) == []
    assert [asked for asked in shown.requests if not asked.startswith((address, "data:", "blob:"))] == []


@pytest.mark.parametrize("width", [360, 390, 768, 1280, 2560])
def test_no_page_scrolls_sideways(shown: Tab, address: str, width: int) -> None:
    wide = []
    for kind in KINDS:
        shown.open(f"{address}{kind}.html".replace("README", "index"), width)
        if shown.run("document.documentElement.scrollWidth > innerWidth"):
            wide.append(kind)
    assert wide == []
