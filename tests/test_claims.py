"""Each claim of a public document has the verdict that the engine's figures bear out; the page is what comes out."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import cache

import pytest

from checkout import ROOT
from claims.claim import BY_ITS_RULE, REFUTED, REPRODUCED, UNTESTABLE, Claim, Figure
from claims.page import CLAIMS, page

PAGE = ROOT / "docs" / "claims.md"
COMMAND = "python tests/test_claims.py > docs/claims.md"


@cache
def _figures(number: str) -> Sequence[Figure]:
    return tuple(next(claim for claim in CLAIMS if claim.number == number).ask())


def _made() -> str:
    return page([(claim, _figures(claim.number)) for claim in CLAIMS])


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_figures_bear_the_verdict_out(claim: Claim) -> None:
    assert claim.problem(_figures(claim.number)) is None


def test_the_page_is_what_comes_out() -> None:
    assert PAGE.read_text(encoding="utf-8") == _made(), f"expected what `{COMMAND}` writes"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_a_reason_gives_no_figure_that_is_not_asked(claim: Claim) -> None:
    """Exact ones, with a point and a unit: they are in the table, or the claim's own."""
    section = _made().partition(f"### {claim.number}:")[2].partition("\n### ")[0]
    assert claim.because in section
    table = section.replace(claim.because, "")
    found = re.findall(r"(\d+\.\d+) (?:GB|GiB|B\b|TFLOP|s\b)", claim.because)
    assert [figure for figure in found if figure not in table] == []


def test_every_claim_is_asked_once() -> None:
    numbers = [claim.number for claim in CLAIMS]
    assert sorted(numbers) == sorted([f"M{n}" for n in range(1, 65)] + [f"X{n}" for n in range(1, 13)])


@pytest.mark.parametrize(("verdict", "figures", "told"), [
    (REPRODUCED, [Figure("x", 10.0, 10.1)], None),
    (REPRODUCED, [Figure("x", 10.0, 11.0)], "called reproduced, but x is 11.0, not 10.0"),
    (REFUTED, [Figure("x", 10.0, 11.0)], None),
    (REFUTED, [Figure("x", "fits", "fits")], "called refuted, but every figure agrees"),
    (BY_ITS_RULE, [Figure("x", 10.0, 20.0, rule=10.05)], None),
    (BY_ITS_RULE, [Figure("x", 10.0, 20.0, rule=15.0)], "x is 15.0 by its rule, not 10.0"),
    (BY_ITS_RULE, [Figure("x", 10.0, 20.0)], "x is None by its rule, not 10.0"),
    (REPRODUCED, [], "no figures"), (UNTESTABLE, [], None), (UNTESTABLE, [Figure("x", 1.0, 1.0)], "not simulated"),
    ("proved", [Figure("x", 1.0, 1.0)], "proved is no verdict")])
def test_a_verdict_that_figures_do_not_bear_out_is_told(verdict: str, figures: list[Figure], told: str | None) -> None:
    problem = Claim("M0", "", verdict, "", lambda: figures).problem(figures)
    assert (problem is None) if told is None else (problem is not None and told in problem)


if __name__ == "__main__":
    sys.stdout.write(_made())
