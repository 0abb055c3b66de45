"""Reasons why runs are not compared: counted once a run, of memory and of time together."""

from __future__ import annotations

from simcore.validation.gaps import gaps_of, not_compared


def test_the_most_frequent_reason_is_first() -> None:
    gaps = gaps_of([("why", "g", "a"), ("because", "h", "b"), ("because", "g", "c"), ("because", "g", "c")])
    assert [(gap.reason, gap.num_rows, gap.groups, gap.rows) for gap in gaps] == [
        ("because", 2, ("g", "h"), ("b", "c")), ("why", 1, ("g",), ("a",))]


def test_a_run_without_memory_and_time_counts_once() -> None:
    memory, time = gaps_of([("why", "g", "a"), ("why", "g", "b")]), gaps_of([("why", "g", "a"), ("late", "g", "c")])
    aside = gaps_of([("copy", "h", "d")])
    found = {one.reason: one for one in not_compared(memory, time, aside)}
    assert next(iter(found)) == "why"
    assert {reason: (one.num_rows, one.num_memory, one.num_time, one.rows) for reason, one in found.items()} == {
        "why": (2, 2, 1, ("a", "b")), "late": (1, 0, 1, ("c",)), "copy": (1, 0, 0, ("d",))}
