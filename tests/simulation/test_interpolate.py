"""Peaks from straight lines are those of whole programs, each layer at its own number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import small
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.pipeline.schedule import Action, actions
from simcore.placement.plan import Plan, place
from simcore.placement.token_dispatch import top_k_of
from simcore.program.lower import lower
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import posted_bytes
from simcore.simulation.interpolate import PiecewiseLinearStep, _line, spread

TOKENS, TOP_K, EP = 512, 2, 4
MICROBATCHES = 3
ROUNDED = 200
"""Bytes of a step's peak where operators round."""
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("megatron", {}), ("megatron", {"recompute": "full"}),
    ("megatron", {"options": {"moe_token_dispatcher_type": "flex"}}),
    ("megatron", {"recompute": ["moe_act"]}), ("megatron", {"method": "lora"}),
    ("megatron", {"options": {"moe_token_dispatcher_type": "allgather"}}),
    ("automodel", {}), ("automodel", {"recompute": "full"}), ("automodel", {"options": {"dispatcher": "torch"}}),
    ("automodel", {"method": "lora"}),
)


def programs(framework: str, **given: Any) -> Callable[[int], Program]:
    asked = small.scenario(framework, {"dp_shard": 4, "ep": EP}, seq_len=TOKENS, microbatches=MICROBATCHES, **given)
    job, table = prepare(asked)
    assert top_k_of(job.graph) == TOP_K
    plan = place(job.graph, job.mesh, table, 0)
    order = actions(table.schedule, plan.stage, MICROBATCHES)
    return _programs(plan, order, TOP_K)


def _programs(plan: Plan, order: tuple[Action, ...], top_k: int) -> Callable[[int], Program]:
    workload = Workload(1, TOKENS, 0, top_k << 16)
    return lambda rows: lower(plan, replace(workload, rows_per_token=-(-(rows << 16) // TOKENS)), order,
                              hooks_of(plan.framework))


def brute_force(program_at: Callable[[int], Program], rows: dict[int, list[int]]) -> int:
    """Every piece from the program of its own layer's and microbatch's rows, all written out."""
    some = program_at(TOKENS)
    every = []
    for piece in some.outline.pieces:
        own = program_at(rows[piece.layer][piece.microbatch]) if piece.layer in rows else some
        every.append(some.outline.loose[piece.start:piece.end] if piece.tile < 0 else own.tiles[piece.tile].rows)
    return int(np.cumsum(posted_bytes(np.concatenate(every))).max())


def spread_of(program_at: Callable[[int], Program]) -> PiecewiseLinearStep:
    return spread(program_at, TOP_K, TOKENS * EP * TOP_K, TOP_K)


@pytest.mark.parametrize(("framework", "given"), CASES)
def test_layers_of_their_own_rows_peak_where_all_rows_written_out_do(framework: str, given: dict[str, Any]) -> None:
    program_at = programs(framework, **given)
    steps, random = spread_of(program_at), np.random.default_rng(0)
    layers = sorted(steps.varying_layers)
    assert layers
    for most in (TOKENS * EP * TOP_K, TOKENS * TOP_K // 2):
        rows = {layer: random.integers(TOP_K, most, (MICROBATCHES, 1)) for layer in layers}
        expected = brute_force(program_at, {layer: mine[:, 0].tolist() for layer, mine in rows.items()})
        found = int(steps.peaks(rows)[0])
        assert abs(found - expected) <= (0 if steps.exact else ROUNDED)


@pytest.mark.parametrize(("framework", "given"), CASES)
def test_which_dispatchers_round(framework: str, given: dict[str, Any]) -> None:
    steps = spread_of(programs(framework, **given))
    rounds = "flex" in str(given) or (framework == "automodel" and "torch" not in str(given))
    assert steps.exact is not rounds
    assert (len(steps.knots) > 2) is rounds  # all tokens are there: a limit, found by halving


@pytest.mark.parametrize("pipeline", [{}, {"virtual_stages": 2}])
def test_stages_hold_microbatches_of_their_own_rows(pipeline: dict[str, Any]) -> None:
    asked = small.scenario("megatron", {"pp": 2, "dp_shard": 8, "ep": 8}, seq_len=TOKENS, microbatches=4,
                           model={"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 4}}, pipeline=pipeline)
    job, table = prepare(asked)
    for rank in (0, 8):
        plan = place(job.graph, job.mesh, table, rank)
        order = actions(table.schedule, plan.stage, 4)
        program_at = _programs(plan, order, 8)
        steps, random = spread(program_at, 8, TOKENS * 64, 8), np.random.default_rng(1)
        assert len(steps.varying_layers) == 2
        rows = {layer: random.integers(8, TOKENS * 64, (4, 1)) for layer in steps.varying_layers}
        expected = brute_force(program_at, {layer: mine[:, 0].tolist() for layer, mine in rows.items()})
        assert int(steps.peaks(rows)[0]) == expected


def test_columns_are_draws_of_their_own() -> None:
    steps = spread_of(programs("megatron"))
    rows = {layer: np.array([[600, 3000, 2]] * MICROBATCHES) for layer in steps.varying_layers}
    alone = [int(steps.peaks({layer: mine[:, i:i + 1] for layer, mine in rows.items()})[0]) for i in range(3)]
    assert steps.peaks(rows).tolist() == alone
    assert alone[2] < alone[0] < alone[1]


def test_rows_that_are_highest_between_two_knots_alone_are_kept() -> None:
    sums = np.array([[10.0, 1.0, 9.0, 1.0], [1.0, 10.0, 9.0, 1.0]])  # one falls, one rises, one is flat, one is low
    line = _line(sums)
    assert line.tops.tolist() == [[10, 1, 9], [1, 10, 9]]
    assert line.nets.tolist() == [1, 1]
    assert line.varies
    assert not _line(sums[:1]).varies


def test_one_number_of_rows_takes_one_program() -> None:
    steps = spread(programs("megatron"), 100, 100, TOP_K)
    assert steps.knots == (100,)
    assert steps.exact
    assert not steps.varying_layers
