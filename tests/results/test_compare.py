from __future__ import annotations

import pytest
from pydantic import ValidationError

from fakes import GIB, illegal, rank, report, traffic
from simcore.results.compare import (
    Comparison,
    Kept,
    Row,
    as_rows,
    compare,
    part_rows,
    phase_rows,
    traffic_rows,
    worst_rank,
)
from simcore.results.evidence import Evidence
from simcore.results.report import Report
from simcore.results.time import Cost


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


def timed(name: str, step_s: float = 0.5, **changed: object) -> Report:
    """A report whose step has parts and a price."""
    base = report(name, step_s=step_s)
    assert base.time is not None
    cost = Cost(price_per_gpu_hour=2, per_step=0.004, per_million_tokens=0.5)
    parts = {"forward": 0.1, "backward": 0.2, "communication": 0.2}
    return base.model_copy(update={"time": base.time.model_copy(update={"parts": parts, "cost": cost} | changed)})


def linked(name: str, nvlink: int, network: int) -> Report:
    """A report whose gathers cross both links."""
    rows = (traffic("all_gather", nvlink + network).model_copy(
        update={"nvlink_bytes": nvlink * GIB, "network_bytes": network * GIB}), traffic("copy", 2))
    return report(name, ranks=(rank(traffic=rows),))


def test_a_third_result_is_compared_with_the_first() -> None:
    every = compare(report("a", 40), report("b", 50), report("c", 20))
    assert every.names == ("a", "b", "c")
    device = row(every.peak, "device")
    assert device.values == (40 * GIB, 50 * GIB, 20 * GIB)
    assert [device.percent_of(place) for place in range(3)] == [0, 25, -50]
    assert (device.difference, device.percent) == (10 * GIB, 25)
    assert repr(every) == ("<Comparison 'a' -> 'b' -> 'c': device 40.00 GiB -> 50.00 GiB -> 20.00 GiB, "
                           "step 500 ms -> 500 ms -> 500 ms>")
    assert Comparison.model_validate_json(every.model_dump_json()) == every


def test_verdicts_are_the_words_of_the_reports() -> None:
    unsure = report("c").model_copy(update={"verdict": "unsure"})  # a value that a later version adds
    every = compare(report("a"), report("b", 100), unsure, illegal("d"), report("e", None))
    assert every.verdicts == ("fits", "oom", "unsure", "illegal", "")
    assert every.num_gpus == (4, 4, 4, 0, 4)


def test_evidence_is_that_of_the_reports() -> None:
    known = Evidence(kind="class", layout_class="fsdp2", class_runs=3)
    every = compare(report("a"), report("b").model_copy(update={"evidence": known}), illegal("c"))
    assert every.evidence == ("", "class", "")
    assert ("verdict", "evidence", "", "", "class", "") in as_rows(every)


def test_a_setting_that_is_kept_is_in_the_column_of_its_result() -> None:
    kept = Kept(place=1, key="training.loss", value="hf", wanted="te", reason="not yet")
    both = compare(report("a"), report("b"), kept=[kept])
    assert as_rows(both)[-1] == ("kept", "training.loss", "", "", "keeps training.loss hf, not te: not yet")
    assert Comparison.model_validate_json(both.model_dump_json()).kept == (kept,)


def test_traffic_is_divided_by_axis_and_link() -> None:
    both = compare(linked("a", 3, 1), linked("b", 0, 5))
    assert [(one.collective, one.axis, one.link, one.a // GIB, one.b // GIB) for one in both.links] == [
        ("all_gather", "dp_shard", "nvlink", 3, 0), ("all_gather", "dp_shard", "network", 1, 5),
        ("copy", "dp_shard", "host", 2, 2)]
    assert [(one.what, one.a // GIB, one.b // GIB) for one in traffic_rows(both)] == [
        ("all_gather", 4, 5), (" dp_shard NVLink", 3, 0), (" dp_shard network", 1, 5), ("copy", 2, 2),
        (" dp_shard host", 2, 2), ("all over NVLink", 3, 0), ("all over network", 1, 5), ("all over host", 2, 2),
        ("total", 6, 7)]
    older = both.model_copy(update={"links": ()})
    assert traffic_rows(older) == both.traffic


def test_parts_add_up_to_the_step_and_replace_what_they_divide() -> None:
    both = compare(timed("a"), timed("b"))
    assert sum(one.a for one in both.parts) == both.time[0].a
    assert [one.what for one in part_rows(both)] == ["forward kernels", "backward kernels", "exposed communication"]
    assert [one.what for one in phase_rows(both)] == ["step", "forward", "backward", "optimizer"]
    assert phase_rows(compare(report("a"), report("b")))[4].what == "exposed communication"


def test_rates_and_prices_have_units() -> None:
    both = compare(timed("a"), timed("b", cost=None))
    assert {one.what: (one.unit, one.a, one.b) for one in both.rates} == {
        "tokens/s per GPU": ("number", 12_345.6, 12_345.6), "MFU": ("share", 0.3, 0.3),
        "model TFLOP/s per GPU": ("number", 300, 300), "USD per step": ("USD", 0.004, 0),
        "USD per M tokens": ("USD", 0.5, 0), "USD per GPU hour": ("USD", 2, 0)}
    assert both.conventions == ("rankscope", "rankscope")


def test_rows_for_a_spreadsheet_have_every_quantity_once() -> None:
    both = compare(timed("a"), timed("b"), timed("c"))
    heads, verdicts, gpus, *rows = as_rows(both)
    assert not any(one[1] == "evidence" for one in rows)
    assert heads == ("section", "what", "unit", "a", "b", "c")
    assert verdicts[3:] == ("fits", "fits", "fits")
    assert gpus[3:] == (4, 4, 4)
    assert len(rows) == sum(len(section.rows) for section in both.sections)
    assert len({one[:2] for one in rows}) == len(rows)
    assert ("rates", "USD per step", "USD", 0.004, 0.004, 0.004) in rows
    assert ("peak", "device", "B", 40 * GIB, 40 * GIB, 40 * GIB) in rows
