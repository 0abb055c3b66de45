"""Tables of a page in `docs/` that the code makes: each stands between two marks with its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

MARKS = "<!-- begin: {} -->", "<!-- end: {} -->"


def shown(page: Path, name: str) -> str:
    """The table as the page has it."""
    begin, end = (mark.format(name) for mark in MARKS)
    _, _, rest = page.read_text(encoding="utf-8").partition(begin)
    return rest.partition(end)[0].strip()


def write(page: Path, tables: Mapping[str, Callable[[], str]]) -> None:
    """Write all tables anew."""
    for name, table in tables.items():
        begin, end = (mark.format(name) for mark in MARKS)
        before, _, rest = page.read_text(encoding="utf-8").partition(begin)
        after = rest.partition(end)[2]
        page.write_text(f"{before}{begin}\n\n{table()}\n\n{end}{after}", encoding="utf-8")
