from __future__ import annotations

import pytest
from pydantic import ValidationError

from fakes import GIB, illegal, rank, report
from simcore.results.compare import Comparison, Row, compare, worst_rank


def row(rows: tuple[Row, ...], what: str) -> Row:
    return next(r for r in rows if r.what == what)


def test_difference_is_b_minus_a_and_percent_of_a() -> None:
    both = compare(report("a", 40), report("b", 50, step_s=0.25))
    assert row(both.peak, "device") == Row(what="device", a=40 * GIB, b=50 * GIB, difference=10 * GIB, percent=25.0)
    assert row(both.time, "step").percent == -50
    assert isinstance(row(both.peak, "device").difference, int)


def test_totals_are_sums_of_their_rows() -> None:
    both = compare(report("a"), report("b"))
    for rows in (both.at_rest, both.traffic):
        assert rows[-1].what == "total"
        assert rows[-1].a == sum(r.a for r in rows[:-1])
    assert row(both.at_rest, "total").a == 7 * GIB
    assert row(both.traffic, "all_gather dp_shard").a == 6 * GIB


def test_what_only_one_side_has_counts_as_zero_on_the_other() -> None:
    both = compare(illegal("a"), report("b"))
    assert row(both.traffic, "all_gather dp_shard") == Row(
        what="all_gather dp_shard", a=0, b=6 * GIB, difference=6 * GIB, percent=None
    )
    assert compare(illegal("a"), illegal("b")).time == ()


def test_swapping_sides_swaps_signs() -> None:
    there, back = compare(report("a", 40), report("b", 50)), compare(report("b", 50), report("a", 40))
    for one, other in zip(there.peak, back.peak, strict=True):
        assert (one.a, one.b, one.difference) == (other.b, other.a, -other.difference)


def test_the_worst_rank_has_the_highest_peak_else_the_most_at_rest() -> None:
    low, high = rank(10), rank(60, ranks=("4-7",))
    assert worst_rank(report(ranks=(low, high))) == high
    empty, full = rank(None, at_rest={}), rank(None)
    assert worst_rank(report(ranks=(empty, full))) == full
    assert worst_rank(illegal("a")) is None


def test_a_comparison_is_frozen_and_goes_through_json() -> None:
    both = compare(report("a", 40), report("b", 50))
    assert Comparison.model_validate_json(both.model_dump_json()) == both
    with pytest.raises(ValidationError):
        both.a = "c"
