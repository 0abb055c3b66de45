"""Segments of a memory pool of its own: torch's rules again, and the buffers that frameworks put there."""

from __future__ import annotations

from random import Random

import small
from replay import Allocator
from simcore.frameworks.megatron.flat_parameters import rank_buffers
from simcore.frameworks.megatron_fsdp.buckets import rank_buckets as rank_fsdp_buckets
from simcore.frameworks.megatron_fsdp.buckets import registered_pool
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.memory.own_pool import unused_bytes
from simcore.simulate import simulate

MIB = 2**20


def test_segments_are_those_of_the_allocator() -> None:
    """2 MiB for 3 KiB; 20 MiB for 6 MiB, with room for 3 more; 12 MiB for 11."""
    assert unused_bytes([3072]) == 2 * MIB - 3072
    assert unused_bytes([6 * MIB, 3 * MIB]) == 11 * MIB
    assert unused_bytes([11 * MIB]) == MIB
    assert unused_bytes([0]) == unused_bytes([]) == 0


def test_it_is_the_replayed_allocator() -> None:
    draw = Random(7)
    for count in range(40):
        sizes = [draw.choice((0, draw.randint(1, MIB), draw.randint(MIB, 30 * MIB))) for _ in range(count)]
        allocator = Allocator(expandable=False)
        for size in filter(None, sizes):
            allocator.take(size)
        assert unused_bytes(sizes) == allocator.reserved - sum(sizes)


def test_registered_buffers_are_reserved_to_the_end_of_their_segments() -> None:
    """Two buffers under Megatron's optimizer, parameters and gradients: nothing else is allocated or sent."""
    with_it, without = (simulate(small.scenario("megatron", {"dp_shard": 2}, model="llama-tiny", options={
        "nccl_ub": on})).ranks[0] for on in (True, False))
    assert with_it.peak
    assert without.peak
    assert with_it.peak.allocated_bytes == without.peak.allocated_bytes
    buffer = rank_buffers(small.plan_of("megatron", {"dp_shard": 2}, model="llama-tiny"))[0].flat.numel
    unused = unused_bytes([2 * buffer, 4 * buffer])
    assert with_it.peak.reserved_bytes - without.peak.reserved_bytes == unused > 0
    assert with_it.peak.device_bytes - without.peak.device_bytes == unused
    assert with_it.traffic == without.traffic


def test_shards_and_shared_buffers_are_in_one_pool() -> None:
    """Megatron-FSDP: five units that share two buffers of weights (2 bytes) and two of gradients (4)."""
    model = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 5}}
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=model, options={"nccl_ub": True})
    buckets = rank_fsdp_buckets(plan)
    sizes = [[width * bucket.shard for bucket in buckets] + 2 * [width * buckets[1].numel] for width in (2, 4)]
    assert registered_pool(plan) == ((*sizes[0], *sizes[1]),)
    assert plan.framework.strategy_as(MegatronFsdpStrategy).double_buffer
    assert registered_pool(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=model)) == ()
