"""The card of two results."""

from __future__ import annotations

import fakes
from cards import words
from simcore import compare


def test_a_comparison_has_each_number_with_its_difference() -> None:
    text = words(compare(fakes.report("one", 40), fakes.report("two", 50)))
    assert "A one B two" in text
    assert "needed at the peak 40.00 GiB 50.00 GiB ▲ 10.00 GiB (+25%)" in text


def test_what_was_refused_is_no_improvement() -> None:
    text = words(compare(fakes.report("one"), fakes.illegal("two")))
    assert text.startswith("A one B two B has no numbers, so there is nothing to compare")
    assert "%" not in text
