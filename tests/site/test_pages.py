"""Pages of the site: links are alive, nothing is loaded from elsewhere, and each reads as it does on GitHub."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

from checkout import ROOT
from page_text import counted, parsed
from test_site import NAV, on_site, pages

LEFT_OUT = {"p"}  # a list with empty lines between its entries has paragraphs in one and none in the other


def html_pages(site: Path) -> list[Path]:
    """Pages in the order of their names."""
    return sorted(site.rglob("*.html"))


def target(site: Path, page: Path, link: str) -> tuple[Path, str]:
    """File and anchor of a link inside of the site."""
    split = urlsplit(link)
    path = unquote(split.path)
    found = site / path.lstrip("/") if path.startswith("/") else page.parent / path if path else page
    found = Path(os.path.normpath(found))
    return found / "index.html" if found.is_dir() else found, unquote(split.fragment)


def test_there_are_pages(site: Path) -> None:
    assert len(html_pages(site)) > 90


def test_links_are_alive(site: Path) -> None:
    dead = []
    for page in html_pages(site):
        for link in (*parsed(page).links, *parsed(page).loaded):
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            file, anchor = target(site, page, link)
            if not file.is_file() or (anchor and file.suffix == ".html" and anchor not in parsed(file).ids):
                dead.append((page.relative_to(site).as_posix(), link))
    assert dead == []


def test_ids_of_a_page_are_unique(site: Path) -> None:
    twice = {page.name: found for page in html_pages(site)
             if (found := [name for name, times in Counter(parsed(page).ids).items()
                           if times > 1 and not name.startswith("__")])}
    assert twice == {}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in html_pages(site):
        assert [link for link in parsed(page).loaded if urlsplit(link).scheme or link.startswith("//")] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", style.read_text(encoding="utf-8")), style


def test_pages_read_as_on_github(site: Path) -> None:
    """Two readers of Markdown, of the site and of CommonMark, make as many elements of a page."""
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    known = set(pages([entry for _, entries in NAV for entry in entries]))
    files = [path for pattern in ("docs/**/*.md", "scenarios/*/README.md", "*.md", "tests/truth/README.md")
             for path in ROOT.glob(pattern) if on_site(path.relative_to(ROOT).as_posix()) in known]
    assert len(files) == len(known)
    other = {}
    for file in files:
        expected = counted(reader.render(file.read_text(encoding="utf-8")))
        found = parsed(site / on_site(file.relative_to(ROOT).as_posix()).replace(".md", ".html").replace(
            "README.html", "index.html")).elements
        if differ := {tag: (expected[tag], found[tag]) for tag in sorted(set(expected) | set(found))
                      if tag not in LEFT_OUT and expected[tag] != found[tag]}:
            other[file.relative_to(ROOT).as_posix()] = differ
    assert other == {}
