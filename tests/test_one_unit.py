"""Memory and messages are shown in GiB, on every page and in every stored table; a few quotations keep their unit.

Rates (GB/s) are no sizes. Files of topologies and scenarios may give either unit: they are input.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Final

import pytest

from checkout import ROOT
from simcore.inputs.loading import load
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.units import GIB, in_gib
from viz.pages.page import render, render_comparison

PAGES: Final = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "scenarios").rglob("*.md"),
                       *(ROOT / "scenarios").rglob("*.txt")])
DECIMAL: Final = re.compile(r"\b[kMGTP]B\b(?!/s)")
CARDS: Final = r"(?:H100|H200|A100|B200|L40S|V100|PCIe|card|[Cc]ards|GPUs?|Spark|(?:RTX|GTX) \w+(?: Ti)?)"
SIZE: Final = r"\d[\d.,]* GB"
QUOTED: Final[dict[str, tuple[str, ...]]] = {
    "names of cards": (rf"{CARDS},?(?: node)?(?: of| with)? \d+ GB", rf"\d+ GB {CARDS}", r"\"80 GB\" of an H100"),
    "published figures, in brackets behind GiB": (rf"\d \({SIZE}\)",),
}
"""Sizes in GB that may stand on any page, by their reason."""
OF_A_PAGE: Final[dict[str, tuple[str, ...]]] = {
    "docs/claims.md": (r"^[^|\n].*", r"^\|[^|\n]+\| [^| ].*"),  # words of documents, rows that compare with them
    "docs/extending/gpu.md": (r'value: "[^"]*"', r"name: .*"),  # files of topologies
    "docs/questions.md": (r"The note's GB are taken as 1e9 bytes",),
    "scenarios/claims/README.md": (r"published\n? *sheet gives 14 GB",),
    "scenarios/nano-published/README.md": (r"It says GB without saying which", r"the 2-4 GB of overhead"),
    "scenarios/nano-published/answers/table.md": (r"GB, taken as 1e9 bytes",),
    "scenarios/zero3-estimate/README.md": (r'"0\.77GB"',),
}
"""Quotations of a page, and words about the units of others. Claims are judged in the unit of their source."""


def left(name: str, text: str) -> list[str]:
    """Lines that show a size in GB without a reason that is named."""
    for pattern in (*(one for every in QUOTED.values() for one in every), *OF_A_PAGE.get(name, ())):
        text = re.sub(pattern, "", text, flags=re.MULTILINE)
    return [line for line in text.splitlines() if DECIMAL.search(line)]


def shown(page: str, reports: list[Report]) -> str:
    """Text and titles of an HTML page, without scripts and styles, and without the words of sources."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]+>", "\n", page))
    for source in {one.source for report in reports for one in report.assumptions if one.source}:
        text = text.replace(source, "")
    return text


@pytest.mark.parametrize(("size", "digits", "signed", "told"), [
    (3 * GIB / 2, 2, False, "1.50"), (0, 2, False, "0.00"), (GIB // 1000, 2, False, "<0.01"),
    (GIB // 50, 1, False, "<0.1"), (2000 * GIB, 1, False, "2,000.0"), (-GIB, 1, True, "-1.0"),
    (GIB // 1000, 2, True, "+0.00"), (GIB, 0, False, "1")])
def test_a_number_of_a_column(size: int, digits: int, signed: bool, told: str) -> None:
    assert in_gib(size, digits, signed=signed) == told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_sizes_in_gib(page: Path) -> None:
    assert left(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")) == []


def test_drawn_pages_show_sizes_in_gib() -> None:
    first = ["first-look/first-look", "gradient-accumulation/automodel-nano-cp2-one", "nano-grpo/dpo-ep8"]
    found = [simulate(load(ROOT / "scenarios" / f"{name}.yaml")[0], detail=True) for name in first]
    pages = [render(found[:1]), render(found[2:]), render(found), render_comparison(found[:2])]
    for page in (shown(page, found) for page in pages):
        assert len(re.findall(r"\d GiB", page)) > 10
        assert left("", page) == []


@pytest.mark.parametrize("line", [
    "| peak GB |", "| 46.51 GB |", "needs 12 GB of memory", "pools may add 3 GB", "in GB, by collective", "551 MB",
    "host memory 2 TB", "18.9 GB (17.6)"])
def test_a_size_in_another_unit_is_seen(line: str) -> None:
    assert left("docs/time.md", line) == [line]


@pytest.mark.parametrize("line", [
    "one H100 of 80 GB", "eight 80 GB GPUs", "RTX 5090 of 32 GB", "450 GB/s", "| 20.5 (22.0 GB) |", "46.51 GiB"])
def test_names_rates_and_quotations_stay(line: str) -> None:
    assert left("docs/time.md", line) == []


def test_every_exception_is_needed() -> None:
    for name, patterns in OF_A_PAGE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert [one for one in patterns if not re.search(one, text, flags=re.MULTILINE)] == []


def test_what_is_compared_in_gb_is_told_in_gib_too() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()]
    compared = [row[-2] for row in rows if len(row) > 4 and re.match(SIZE, row[-2])]
    assert len(compared) > 70
    assert [cell for cell in compared if not re.fullmatch(rf"{SIZE} \([\d.,]+ GiB\)", cell)] == []
