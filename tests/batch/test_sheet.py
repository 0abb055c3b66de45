"""The page of sizes is what the engine answers, cell by cell."""

from __future__ import annotations

import pytest

from checkout import ROOT
from simcore.batch.sheet import CARDS, METHODS, MODELS, fewest, largest
from test_scenarios import SCENARIOS

PAGE = (ROOT / "docs" / "sheet.md").read_text(encoding="utf-8")


def cells(part: int) -> dict[tuple[str, str, str], str]:
    """(model, method, card) -> text, of one of the page's tables."""
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")]
            for line in PAGE.split("## ")[part].splitlines() if line.startswith("|")]
    head, _, *body = rows
    return {(row[0], row[1], card): text for row in body for card, text in zip(head[2:], row[2:], strict=True)}


def test_the_page_has_every_cell() -> None:
    asked = {(model, method, card) for model in MODELS for method in METHODS for card in CARDS}
    assert set(cells(1)) == set(cells(2)) == asked


@pytest.mark.parametrize(("model", "method", "card"), [
    ("llama-2-7b", "full", "dgx-h100"), ("llama-2-13b", "lora", "rtx-4090"), ("llama-2-70b", "qlora", "dgx-h100"),
    ("nemotron-dense-100b", "full", "dgx-b200"), ("nemotron-dense-100b", "lora", "dgx-h200")])
def test_a_cell_is_what_the_engine_answers(model: str, method: str, card: str) -> None:
    told = "run: python -m simcore.batch.sheet scenarios/claims > docs/sheet.md"
    assert cells(1)[model, method, card] == fewest(SCENARIOS / "claims", model, method, card), told
    assert cells(2)[model, method, card] == largest(SCENARIOS / "claims", model, method, card), told


def test_a_method_with_less_memory_never_needs_more_gpus() -> None:
    def number(model: str, method: str, card: str) -> float:
        text = cells(1)[model, method, card]
        return float("inf") if text.startswith("-") else float(text.split()[0].replace(",", ""))

    for model in MODELS:
        for card in CARDS:
            assert number(model, "lora", card) <= number(model, "full", card)
