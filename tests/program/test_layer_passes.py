"""Recordings of one kind of layer: shared by ranks with other kinds, and equal to those that would be made anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.models.blocks import Moe
from simcore.program import layer_passes
from simcore.program.layer_passes import passes_of
from simcore.program.outline import Tables
from simcore.program.record_layers import Workload, keys_of, run_of
from simcore.program.tile import OP, SLOT
from simcore.recording.tape import Op

LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("fsdp2", {}), ("automodel", {}), ("automodel", {"recompute": "full"}), ("megatron", {})]


def recorded(framework: str, given: dict[str, Any]) -> list[tuple[Any, Any, Any, Any]]:
    """(graph, key, workload, whether it has experts) of each kind of layer."""
    plan = small.plan_of(framework, {"dp_shard": 4, "ep": 4}, **given)
    keys = dict.fromkeys(keys_of(plan).values())
    kinds = plan.graph.kinds
    return [(plan.graph, key, run_of(plan, key, Workload(1, 64, 2 << 16)),
             any(isinstance(branch.block, Moe) for branch in kinds[key[0]].branches)) for key in keys]


@pytest.mark.parametrize(("framework", "given"), LAYOUTS)
def test_what_experts_exchange_changes_no_other_layer(framework: str, given: dict[str, Any],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    for graph, key, run, has_experts in recorded(framework, given):
        shared = passes_of(graph, key, run, Tables())
        with monkeypatch.context() as patch:
            patch.setattr(layer_passes, "_without_experts", lambda _, run: run)
            alone = passes_of(graph, key, run, Tables())
        assert (shared is alone) == has_experts
        assert all(np.array_equal(one.rows, other.rows) and np.array_equal(one.replay, other.replay)
                   for one, other in zip(shared.tiles, alone.tiles, strict=True))


@pytest.mark.parametrize(("framework", "given"), LAYOUTS)
def test_rows_have_the_numbers_of_the_tables_that_are_given(framework: str, given: dict[str, Any]) -> None:
    for graph, key, run, _ in recorded(framework, given):
        own, other = Tables(), Tables()
        other.slot("another", "activation")
        other.comm("all_reduce", "pp", "fp64")
        one, two = passes_of(graph, key, run, own), passes_of(graph, key, run, other)
        names, renamed = list(own.slots), list(other.slots)
        assert [names[slot] for _, slot, _ in one.grads] == [renamed[slot] for _, slot, _ in two.grads]
        for tile, moved in zip(one.tiles, two.tiles, strict=True):
            posted = tile.rows[:, OP] <= Op.FREE
            called = (tile.rows[:, OP] == Op.COLLECTIVE) | (tile.rows[:, OP] == Op.COPY)
            assert ([names[slot] for slot in tile.rows[posted, SLOT]]
                    == [renamed[slot] for slot in moved.rows[posted, SLOT]])
            assert ([list(own.comms)[comm] for comm in tile.rows[called, SLOT]]
                    == [list(other.comms)[comm] for comm in moved.rows[called, SLOT]])
            assert np.array_equal(tile.rows[~(posted | called)], moved.rows[~(posted | called)])
