"""Each claim of a public document has the verdict that its figures bear out; the page is what comes out."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from checkout import ROOT
from claims.claim import (
    ANSWERED,
    BY_ITS_RULE,
    REFUTED,
    REPRODUCED,
    TIGHT,
    UNDECIDED,
    UNSURE,
    UNTESTABLE,
    Between,
    Claim,
    Figure,
)
from claims.hand import SYMBOLS, by_hand
from claims.mutate import LEAST, outcomes, table, wrong_engines
from claims.page import CLAIMS, page

PAGE = ROOT / "docs" / "claims.md"
COMMAND = "python tests/test_claims.py > docs/claims.md"
MEASURED = ("M13",)
"""Claims with a measured time: no arithmetic by hand gives it within a few per cent."""


@cache
def _figures(number: str) -> Sequence[Figure]:
    return tuple(next(claim for claim in CLAIMS if claim.number == number).ask())


def _asked() -> list[tuple[Claim, Sequence[Figure]]]:
    return [(claim, _figures(claim.number)) for claim in CLAIMS]


def _made() -> str:
    return page(_asked())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_figures_bear_the_verdict_out(claim: Claim) -> None:
    assert claim.problem(_figures(claim.number)) is None


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.number)
def test_a_tenth_more_leaves_the_range_of_a_number(claim: Claim) -> None:
    """Every claim with figures has a number, and every range is tighter than a tenth, but for measured times."""
    numbers = [one for one in _figures(claim.number) if not isinstance(one.simulated, str)]
    assert bool(numbers) == (claim.verdict != UNTESTABLE)
    assert [one.what for one in numbers if one.share > TIGHT][int(claim.number in MEASURED):] == []


def test_falsified_results_fail() -> None:
    found = outcomes(_asked())
    assert all(one.share >= LEAST for one in found), table(found)


def test_an_engine_that_is_wrong_by_a_tenth_fails() -> None:
    (found,) = wrong_engines(_asked(), (1.1,))
    assert found.share >= LEAST, table([found])
    assert found.claims > 60


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


# ---- rules of judging -----------------------------------------------------------------------------------------------
TEN = Figure("x", 10.0, 10.1, "10")
ELEVEN = Figure("x", 10.0, 11.0, "11", False, decides=True)


@pytest.mark.parametrize(("verdict", "figures", "told"), [
    (REPRODUCED, [TEN], None),
    (REPRODUCED, [replace(TEN, simulated=11.0)], "x is 11, expected 10 within 2.0%"),
    (REPRODUCED, [ELEVEN], "called reproduced, but x is 11.0 against 10.0"),
    (REPRODUCED, [replace(TEN, expected="10.3")], "the expected value 10.3 against 10.0 is False, not True"),
    (REPRODUCED, [TEN, replace(TEN, simulated=11.0, expected="11")], "is False, not True"),
    (REFUTED, [ELEVEN], None),
    (REFUTED, [ELEVEN, replace(TEN, simulated=12.0)], "x is 12, expected 10"),
    (REFUTED, [replace(ELEVEN, decides=False)], "no figure decides that it is refuted"),
    (REFUTED, [Figure("x", "fits", "fits", "fits", decides=True)], "called refuted, but x is fits"),
    (REFUTED, [Figure("x", "fits", UNSURE, UNSURE, None, decides=True)], "called refuted, but x is unsure"),
    (UNDECIDED, [Figure("x", "fits", UNSURE, UNSURE, None, decides=True)], None),
    (UNDECIDED, [Figure("x", "fits", "fits", "fits", decides=True)], "called undecided, but x is fits"),
    (ANSWERED, [Figure("x", None, 5.0, "5", None)], None),
    (ANSWERED, [replace(TEN, decides=True)], "x has a published value"),
    (BY_ITS_RULE, [replace(ELEVEN, rule="5 + 5")], None),
    (BY_ITS_RULE, [replace(ELEVEN, rule="15")], "x is 15.0 by its rule, not 10.0"),
    (BY_ITS_RULE, [ELEVEN], "no rule of what decides"),
    (REPRODUCED, [], "no figures"), (UNTESTABLE, [], None), (UNTESTABLE, [TEN], "not simulated"),
    ("proved", [TEN], "proved is no verdict")])
def test_a_verdict_that_figures_do_not_bear_out_is_told(verdict: str, figures: list[Figure], told: str | None) -> None:
    problem = Claim("M0", "", verdict, "", lambda: figures).problem(figures)
    assert (problem is None) if told is None else (problem is not None and told in problem)


@pytest.mark.parametrize(("value", "found"), [(2.0, True), (4.0, True), (1.9, False), (4.1, False), ("yes", False)])
def test_a_published_range_has_its_ends(value: float | str, found: bool) -> None:
    assert Figure("x", Between(2.0, 4.0), value, "2").found(value) is found


def test_arithmetic_by_hand() -> None:
    assert by_hand("2*(X + D)/1e9 + ceil(3/2) - 2**2/4") == 2 * (SYMBOLS["X"][0] + SYMBOLS["D"][0]) / 1e9 + 1
    assert by_hand("X + D") == 31_577_940_288
    with pytest.raises(ValueError, match="no arithmetic"):
        by_hand("open('x')")


def test_a_claim_that_nothing_falsifies_would_be_seen() -> None:
    slack = replace(TEN, share=1e9, within=1e9)
    found = outcomes([(Claim("M0", "", REPRODUCED, "", lambda: [slack]), [slack])])
    assert {one.name for one in found if one.passed} >= {"all numbers x 1.1", "all numbers x 3", "all numbers x 0.1"}


if __name__ == "__main__":
    sys.stdout.write(_made())
