"""The order of forwards: the unit before, under each root, and what a copied pass adds to or takes from it."""

from __future__ import annotations

import small
from simcore.frameworks.fsdp2.forward_order import ForwardOrder
from simcore.frameworks.setup import prepare
from simcore.placement.framework import Unit


def units() -> list[Unit]:
    _, framework = prepare(small.scenario("fsdp2", {"dp_shard": 2}))
    return list(framework.units)


def test_backward_finds_the_unit_before_the_latest_forward() -> None:
    order = ForwardOrder(units())
    for u in (1, 2, 1, 2):
        order.ran(u)
    assert [order.take(u) for u in (2, 1, 2, 1)] == [1, 2, 1, -1]
    assert order.take(2) == -1


def test_nothing_is_before_the_first_forward_after_clear() -> None:
    order = ForwardOrder(units())
    order.ran(1)
    order.ran(2)
    order.clear([1, 2])
    order.ran(2)
    assert order.take(2) == -1
    assert order.take(1) == -1


def test_following_a_pass_leaves_the_state_of_running_it() -> None:
    run, followed = ForwardOrder(units()), ForwardOrder(units())
    for order in (run, followed):
        order.ran(1)
        order.ran(2)
    before = run.depths()
    run.ran(1)
    followed.follow([new - old for new, old in zip(run.depths(), before, strict=True)], run.tops())
    assert (followed.tops(), followed.depths()) == (run.tops(), run.depths())
    before = run.depths()
    run.take(1)
    followed.follow([new - old for new, old in zip(run.depths(), before, strict=True)], run.tops())
    assert [order.take(1) for order in (run, followed)] == [-1, -1]


def test_a_forward_without_one_before_differs_from_none() -> None:
    order = ForwardOrder(units())
    empty = order.tops()
    order.ran(1)
    assert order.tops()[1] != empty[1]
