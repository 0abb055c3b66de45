"""Buckets that are gathered, and buckets that are freed, call by call."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, combinations_with_replacement

from hypothesis import given
from hypothesis import strategies as st

import small
from simcore.frameworks.megatron_fsdp.all_gather import ParameterPrefetch
from simcore.frameworks.megatron_fsdp.buckets import rank_buckets
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.program.builder import Builder
from simcore.program.outline import Tables

MODEL = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 5}}
BUCKETS = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))
UNIT = BUCKETS[1].numel


def gathers(ahead: int, *, double_buffer: bool = False, keeps_outside: bool = False,
            has_columns: bool = False) -> ParameterPrefetch:
    strategy = MegatronFsdpStrategy(ahead, 2 * ahead, 0, ("dp_cp", "expert_dp"), "fp32", "fp32",
                  double_buffer=double_buffer,
                  keeps_outside=keeps_outside, has_columns=has_columns)
    tables = Tables()
    buckets = tuple(replace(b, dtype="fp8") if b.unit >= 0 else b for b in BUCKETS) if has_columns else BUCKETS
    return ParameterPrefetch(buckets, strategy, tables, Builder(tables))


def whole(made: ParameterPrefetch) -> list[int]:
    return [b for b, is_whole in enumerate(made.whole) if is_whole]


def test_as_many_follow_as_the_elements_say() -> None:
    """The one that reaches the number is the last."""
    for ahead, expected in ((0, [2]), (1, [2, 3]), (UNIT, [2, 3]), (UNIT + 1, [2, 3, 4]), (9 * UNIT, [2, 3, 4, 5])):
        made = gathers(ahead)
        made.gather([2], +1)
        assert whole(made) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 40), st.data())
def test_the_short_way_finds_what_upstream_finds_one_by_one(sizes: list[int], ahead: int, data: st.DataObject) -> None:
    """Buckets in groups of one to three."""
    groups = data.draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    made = gathers(ahead)
    made.count = sum(groups)
    ends = list(accumulate(groups))
    made.groups = [list(range(end - size, end)) for end, size in zip(ends, groups, strict=True) for _ in range(size)]
    numel = [size * 3 + n % 2 for n, size in enumerate(size for size, many in zip(sizes, groups, strict=True)
                                                       for _ in range(many))]
    made.buckets = [replace(BUCKETS[0], chunked=replace(BUCKETS[0].chunked, numel=n)) for n in numel]
    made.until = [0, *accumulate(numel)]
    for first, last in combinations_with_replacement(range(made.count), 2):
        for direction in (1, -1):
            wanted = range(first, last + 1)
            assert list(made._with_ahead(wanted, direction)) == made._one_by_one(wanted, direction)


def test_backward_looks_the_other_way() -> None:
    made = gathers(UNIT)
    made.gather([2], -1)
    assert whole(made) == [1, 2]
    made.gather([1], -1)
    assert whole(made) == [0, 1, 2]


def test_what_may_go_goes_when_something_else_comes() -> None:
    made = gathers(0)
    made.gather([1], 0)
    made.let_go([1])
    assert whole(made) == [1]
    made.gather([4], 0)
    assert whole(made) == [4]


def test_what_is_asked_for_again_stays() -> None:
    made = gathers(0)
    made.gather([1, 2], 0)
    made.let_go([1, 2])
    made.gather([1], 0)
    made.gather([5], 0)
    assert whole(made) == [1, 5]


def test_two_shared_buffers_hold_two_units() -> None:
    made = gathers(9 * UNIT, double_buffer=True)
    made.gather([2], +1)
    assert whole(made) == [2, 3]


def test_reset_leaves_nothing_whole() -> None:
    made = gathers(9 * UNIT, keeps_outside=True)
    made.gather([0], +1)
    made.reset()
    assert whole(made) == []


def test_backward_gathers_columns_in_place_of_rows() -> None:
    """Numbers behind the buckets' own; what is in 16 bits has one buffer for both."""
    made, count = gathers(0, has_columns=True), len(BUCKETS)
    made.gather([2], 0)
    made.gather([0, 2], 0, columns=True)
    assert whole(made) == [0, 2, count + 2]
    made.let_go([2])
    made.gather([3], 0, columns=True)
    assert whole(made) == [0, count + 2, count + 3]
    made.release([2, 3])
    assert whole(made) == [0]


def test_columns_ahead_are_columns() -> None:
    made, count = gathers(UNIT, has_columns=True), len(BUCKETS)
    made.gather([3], -1, columns=True)
    assert whole(made) == [count + 2, count + 3]
    made.reset()
    assert whole(made) == []
