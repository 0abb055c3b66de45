"""A rule over many cases fails with the name of every case that breaks it."""

from __future__ import annotations

import pytest

from every import expect_of_every


def small(number: int) -> None:
    assert number < 2, "too large"
    assert 6 // (number + 1)


def test_every_broken_case_is_named() -> None:
    with pytest.raises(AssertionError, match=r"^2 of 4 cases:") as told:
        expect_of_every(zip(("none", "one", "two", "three"), range(4), strict=True), small)
    named = [line.partition(":")[0] for line in str(told.value).splitlines() if "too large" in line]
    assert named == ["two", "three"]


def test_no_case_at_all_is_no_proof() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        expect_of_every([], small)


def test_another_error_says_in_which_case_it_came() -> None:
    with pytest.raises(ZeroDivisionError) as told:
        expect_of_every([("minus", -1)], small)
    assert told.value.__notes__ == ["in the case minus"]
