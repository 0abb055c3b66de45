"""Sizes of Megatron's hooks: complete, and in one order."""

from __future__ import annotations

import small
from simcore.frameworks.megatron.sizes import megatron_sizes


def test_sizes_come_back_in_the_order_in_which_they_are_given() -> None:
    sizes = megatron_sizes(small.plan_of("megatron", {"dp_replicate": 2, "dp_shard": 4, "ep": 2}))
    assert sizes.renumbered(sizes.numbers) == sizes
    other = sizes.renumbered(range(len(sizes.numbers)))
    assert (other.numbers, other.form) == (tuple(range(len(sizes.numbers))), sizes.form)


def test_replicas_sum_the_part_that_was_scattered() -> None:
    sizes = megatron_sizes(small.plan_of("megatron", {"dp_replicate": 2, "dp_shard": 4}))
    (buffer,) = (one for one in sizes.buffers if one.replicate_axis)
    assert buffer.replicas == tuple(size // 4 for size in buffer.reductions)


def test_whole_parameters_that_are_dealt_are_no_sizes() -> None:
    """Muon's update belongs to its rank, so no other plan has its form."""
    plan = small.plan_of("megatron", {"dp_shard": 2}, optimizer={"name": "muon"})
    assert megatron_sizes(plan).own is plan if plan.framework.dealt else megatron_sizes(plan).muon > 0
