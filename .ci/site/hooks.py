"""Hooks of mkdocs: pages that lie outside of `docs/` belong to the site, and links between all of them hold.

README.md is the site's first page; the index of `docs/`, which lists every page, is `pages.md`. Links stay as they are
in the repository, where people read the same files; here each is resolved from the place of its file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[2]
MOVED = {"README.md": "index.md", "docs/README.md": "pages.md"}
"""Pages that stand elsewhere on the site. Others of `docs/` are at its top, the rest at its own path."""
OUTSIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/truth/README.md")
"""Pages outside of `docs/`, beside those of examples: `scenarios/*/README.md` and what these link."""
LINK = re.compile(r"(?<=\]\()([^()\s#:]+)(?=[)#])")
LABEL = re.compile(r'aria-labelledby="__nav_([\d_]+)_label"')
SECTIONS: dict[str, str] = {}
NAMED = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
"""The guides name a file behind the language: the site shows it above the block."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Gives headings the anchors that GitHub gives them."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages outside of `docs/`, and every file that a page of examples links."""
    files.remove(files.get_file_from_path("README.md"))
    for path in ("docs/README.md", *_outside()):
        files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text with links from the page's place on the site."""
    path = _path(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        return posixpath.relpath(place(_resolved(path, found[1])), here or ".")

    parts = FENCE.split(NAMED.sub(r'```\1 title="\2"', markdown))
    return "".join(part if at % 2 else LINK.sub(moved, part) for at, part in enumerate(parts))


def on_nav(nav: Any, **_: Any) -> None:
    """Keeps the titles of sections for `on_post_page`."""
    SECTIONS.update(_titles(nav.items, ""))


def on_post_template(output_content: str, **_: Any) -> str:
    """Page for addresses that do not exist, with the same names."""
    return on_post_page(output_content)


def on_post_page(output: str, **_: Any) -> str:
    """The page with names that the theme leaves out: of the search, and of the parts of the navigation."""
    named = output.replace('data-md-component="search" role="dialog"',
                           'data-md-component="search" role="dialog" aria-label="Search"')
    return LABEL.sub(lambda found: f'aria-label="Pages of {SECTIONS[found[1]]}"', named)


def _titles(items: Iterable[Any], before: str) -> Iterator[tuple[str, str]]:
    """Titles of sections by their place in the navigation, such as 7_10, as the theme counts."""
    for number, item in enumerate(items, 1):
        if item.is_section:
            yield f"{before}{number}", item.title
            yield from _titles(item.children, f"{before}{number}_")


def place(path: str) -> str:
    """Path on the site of a file of the repository: `scenarios/trainers/README.md` is `scenarios/trainers.md`."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else path.replace("/README.md", ".md")


@lru_cache
def _outside() -> tuple[str, ...]:
    """Files outside of `docs/` that the site has."""
    pages = [*OUTSIDE, *(page.relative_to(ROOT).as_posix() for page in sorted(ROOT.glob("scenarios/*/README.md")))]
    linked = {target for page in pages for target in _targets(page) if target.startswith("scenarios/")}
    return tuple(dict.fromkeys([*pages, *sorted(linked)]))


def _targets(path: str) -> list[str]:
    return [_resolved(path, link) for link in LINK.findall(FENCE.sub("", (ROOT / path).read_text(encoding="utf-8")))]


def _resolved(path: str, link: str) -> str:
    """Path from the root of the repository of what a page links; of a folder its README.md."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{found}/README.md" if (ROOT / found).is_dir() else found


def _path(at: str) -> str:
    """Path in the repository of a page of the site."""
    return next((path for path in (*MOVED, *_outside()) if place(path) == at), f"docs/{at}")
