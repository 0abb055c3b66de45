"""Sizes of FSDP2's hooks: complete, and in one order."""

from __future__ import annotations

import small
from simcore.frameworks.fsdp2.sizes import fsdp2_sizes


def test_sizes_come_back_in_the_order_in_which_they_are_given() -> None:
    sizes = fsdp2_sizes(small.plan_of("fsdp2", {"dp_replicate": 2, "dp_shard": 4, "ep": 2}))
    assert sizes.renumbered(sizes.numbers) == sizes
    other = sizes.renumbered(range(len(sizes.numbers)))
    assert (other.numbers, other.form) == (tuple(range(len(sizes.numbers))), sizes.form)


def test_units_that_are_alike_share_their_sizes() -> None:
    sizes = fsdp2_sizes(small.plan_of("fsdp2", {"dp_shard": 2}, model="llama-tiny"))
    assert len(sizes.kinds) == len(set(sizes.units)) < len(sizes.units)
    assert sizes.weights[0].world == 2


def test_twice_the_shards_have_another_size_and_the_same_form() -> None:
    two, four = (fsdp2_sizes(small.plan_of("fsdp2", {"dp_shard": shards})) for shards in (2, 4))
    assert two.form == four.form
    assert two.numbers != four.numbers
