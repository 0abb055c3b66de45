"""Whole gradients that wait: which go, and when."""

from __future__ import annotations

import small
from simcore.frameworks.megatron_fsdp.buckets import rank_buckets
from simcore.frameworks.megatron_fsdp.reduce_scatter import ReduceScatterQueue
from simcore.frameworks.megatron_fsdp.strategy import MegatronFsdpStrategy
from simcore.program.builder import Builder
from simcore.program.outline import Tables

MODEL = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 5}}
BUCKETS = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))
UNIT = BUCKETS[1].numel


def after_backward(waiting: int, *, double_buffer: bool = False, until: int = 1) -> ReduceScatterQueue:
    """Layers 5 down to `until` have given their gradients."""
    tables = Tables()
    strategy = MegatronFsdpStrategy(waiting, waiting, 0, ("dp_cp", "expert_dp"), "fp32", "fp32",
                                    double_buffer=double_buffer)
    made = ReduceScatterQueue(BUCKETS, strategy, tables, Builder(tables))
    for layer in range(5, until - 1, -1):
        made.open([layer])
        made.finish(layer, is_last=True)
    return made


def test_no_more_wait_than_the_elements_say() -> None:
    """The queue's length is checked before the newest bucket is counted."""
    assert after_backward(10 * UNIT).queue == [5, 4, 3, 2, 1]
    assert after_backward(2 * UNIT).queue == [3, 2, 1]
    assert after_backward(UNIT - 1).queue == [1]


def test_shared_buffers_hold_two_units() -> None:
    assert after_backward(10 * UNIT, double_buffer=True).queue == [2, 1]


def test_nothing_waits_when_backward_is_over() -> None:
    made = after_backward(10 * UNIT, until=3)
    made.drain()
    assert made.queue == []
    assert not any(made.is_open)


def test_the_root_is_reduced_with_the_lowest_layer() -> None:
    made = after_backward(10 * UNIT)
    made.open([0])
    assert 0 not in made.queue
    made.finish(0, is_last=True)
    assert made.queue[-1] == 0
