"""The site's navigation is the index of `docs/`: the same sections, titles and pages in the same order."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

from checkout import ROOT
from simcore.inputs.document import parse_document

SITE: dict[str, Any] = parse_document((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), "mkdocs.yml").data
NAV = [entry for section in SITE["nav"] for entry in section.items()]
AT_THE_TOP = {"README.md": "index.md", "docs/README.md": "pages.md"}


def index(page: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Sections of an index: title, and (text, path from the root of the repository) of each link that begins a line."""
    folder = (ROOT / page).parent
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]]
    return [(title, [(name, (folder / link).resolve().relative_to(ROOT).as_posix())
                     for name, link in re.findall(r"^- \[([^\]]+)\]\(([^)]+)\)", rest, re.MULTILINE)])
            for title, _, rest in parts]


def on_site(path: str) -> str:
    """Path on the site of a page of the repository, as `.ci/site/hooks.py` places it."""
    if path in AT_THE_TOP:
        return AT_THE_TOP[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else path.replace("/README.md", ".md")


def pages(entries: list[Any]) -> list[str]:
    """Pages of a part of the navigation, in its order."""
    return list(chain.from_iterable([entry] if isinstance(entry, str) else
                                    chain.from_iterable([value] if isinstance(value, str) else pages(value)
                                                        for value in entry.values()) for entry in entries))


def test_sections_and_pages_are_those_of_the_index() -> None:
    expected = [(title, [(name, on_site(path)) for name, path in links])
                for title, links in index("docs/README.md") if links]
    shown = [(title, [(name, value if isinstance(value, str) else value[0]) for entry in entries
                      for name, value in entry.items()]) for title, entries in NAV]
    assert shown[0][1].pop(1) == ("All pages", "pages.md")
    assert shown == expected


def test_decisions_are_in_the_order_of_their_index() -> None:
    ((_, links),) = index("docs/decisions/README.md")
    found = [path for path in pages(SITE["nav"]) if path.startswith("decisions/")]
    assert found == ["decisions/README.md", *(on_site(path) for _, path in links)]


def test_every_page_is_there_once() -> None:
    files = [path.relative_to(ROOT).as_posix() for pattern in ("docs/**/*.md", "scenarios/*/README.md")
             for path in ROOT.glob(pattern)]
    outside = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/truth/README.md"]
    assert sorted(pages(SITE["nav"])) == sorted(map(on_site, [*files, *outside]))


def test_nothing_of_the_theme_is_fetched() -> None:
    assert SITE["theme"]["font"] is False
    assert not {"repo_url", "site_url"} & set(SITE)  # a repository's stars are fetched in the reader's browser
    assert "default-src 'self'" in (ROOT / ".ci/site/theme/main.html").read_text(encoding="utf-8")
