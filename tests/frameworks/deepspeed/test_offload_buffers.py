"""Buffers on the host: what alignment, copies and pinned blocks add to tensors."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.deepspeed.offload_buffers import beside_tensors, touched, trained
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.placement.plan import Plan
from simcore.results.report import Host
from simcore.simulate import simulate

AWAY: dict[str, Any] = {"offload": {"optimizer": "host"}}
BOTH: dict[str, Any] = {"offload": {"optimizer": "host", "params": "host"}}


def plan_of(stage: str, ranks: int, rank: int = 0, **given: Any) -> Plan:
    return small.plan_of(stage, {"dp_shard": ranks}, rank=rank, model="llama-tiny", **given)


def host_of(stage: str, **given: Any) -> Host:
    found = simulate(small.scenario(stage, {"dp_shard": 4}, model="llama-tiny", **given), timed=False).host
    assert found is not None
    return found


def test_nothing_is_beside_tensors_on_the_device() -> None:
    for stage in ("zero2", "zero3"):
        assert not beside_tensors(plan_of(stage, 4), rounded=True)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_zero2_has_a_copy_of_its_part_and_of_the_largest_parameter(ranks: int) -> None:
    plan = plan_of("zero2", ranks, **AWAY)
    numel = -(-plan.graph.count() // (2 * ranks)) * 2
    found = beside_tensors(plan, rounded=False)
    assert found["copies on their way"] == 2 * numel + 2 * max(placed.used for placed in trained(plan))
    tensors = sum(plan.elsewhere().values())
    assert tensors + found["optimizer states"] + found["gradients"] == 16 * numel


def test_pinned_blocks_are_powers_of_two() -> None:
    """Masters, gradients and the way back; moments are not pinned."""
    plan = plan_of("zero2", 4, **AWAY)
    numel = plan.graph.count() // 4
    more = beside_tensors(plan, rounded=True) - beside_tensors(plan, rounded=False)
    assert more["gradients"] == more["optimizer states"] == (1 << (4 * numel - 1).bit_length()) - 4 * numel
    loose = plan_of("zero2", 4, **AWAY, options={"offload_optimizer": {"pin_memory": False}})
    assert beside_tensors(loose, rounded=True) == beside_tensors(loose, rounded=False)


def test_torchs_loop_makes_a_root_and_a_quotient_of_what_it_updates_at_once() -> None:
    """As torch's own loop was seen to do: 8 bytes an element of one tensor, beside its states."""
    for stage, options, groups in (("zero2", {}, 1), ("zero3", {}, 1), ("zero3", {"sub_group_size": 300_000}, 2)):
        plans = {kind: plan_of(stage, 4, **AWAY, options=options, optimizer={"implementation": kind})
                 for kind in ("cpu", "fused", "for_loop")}
        held = {kind: beside_tensors(plan, rounded=False)["temporaries of the update"] for kind, plan in plans.items()}
        whole = 8 * small.plan_of(stage, {"dp_shard": 4}, model="llama-tiny").graph.count() // 4
        assert held["cpu"] == held["fused"] == 0
        assert whole <= held["for_loop"] < whole + 1024 if groups == 1 else 0 < held["for_loop"] < whole


def test_zero3_pins_parameters_and_gradients() -> None:
    plan = plan_of("zero3", 4, **BOTH)
    more = beside_tensors(plan, rounded=True) - beside_tensors(plan, rounded=False)
    assert set(more) == {"parameters", "gradients"}


def test_accumulation_keeps_whole_gradients_of_what_touches_the_part() -> None:
    """On ranks together: every tensor as often as parts have some of it."""
    one, several = (plan_of("zero2", 4, **AWAY, microbatches=count) for count in (1, 3))
    strategy = several.framework.strategy
    assert isinstance(strategy, ZeroStrategy)
    more = beside_tensors(several, rounded=False) - beside_tensors(one, rounded=False)
    assert more == {"gradients": 2 * sum(touched(several, strategy))}
    every = [touched(plan_of("zero2", 4, rank, **AWAY, microbatches=3), strategy) for rank in range(4)]
    tensors = sum(1 for _ in trained(several))
    assert tensors <= sum(map(len, every)) <= tensors + 3


def test_hosts_hold_what_their_ranks_hold() -> None:
    plan = plan_of("zero2", 4, **AWAY)
    held = dict(next(phase for phase in host_of("zero2", **AWAY).phases if phase.phase == "first_step").by_owner)
    beside = beside_tensors(plan, rounded=True)
    assert sum(held.values()) == 4 * (sum(plan.elsewhere().values()) + beside.total())
    assert held["copies on their way"] == 4 * beside["copies on their way"]
