"""Bytes at rest that a rank owns: equal in `run`, in `place` and for a single rank; the rest is padding."""

from __future__ import annotations

import random
from typing import Any

import pytest

import small
from simcore.inputs.scenario import Scenario
from simcore.recording.tape import Op
from simcore.results.report import AtRest, RankReport
from simcore.simulate import place, simulate

FRAMEWORKS = ("fsdp2", "automodel", "megatron", "megatron_fsdp", "ddp", "zero1", "zero2", "zero3", "fsdp1")
SHARES_PARTS = ("megatron_fsdp", "zero1", "zero2", "zero3", "fsdp1")
"""Frameworks whose ranks have equal parts of flat buffers, with more or less of a tensor in them."""
METHODS = ("full", "lora")
MODELS: dict[str, Any] = {"dense": {"config": "llama-tiny", "overrides": {"vocab_size": 1001}},
                          "experts": "nemotron-3-tiny"}
GRADIENTS = ("sharded_grad", "main_grad", "unsharded_grad", "ignored_grad")


def drawn(name: str, method: str, seed: int) -> Scenario:
    """Some layout of some small model: numbers of ranks that leave remainders are wanted."""
    chance = random.Random(f"{name} {method} {seed}")
    ranks, model = chance.choice([2, 3, 4, 6, 7, 8, 12]), "dense" if method == "lora" else chance.choice(list(MODELS))
    mesh = {"dp_replicate": ranks} if name == "ddp" else {"dp_shard": ranks}
    if name in ("fsdp2", "fsdp1", "megatron_fsdp") and chance.random() < 0.4:
        mesh["dp_replicate"] = 2
    if name in ("fsdp2", "automodel", "megatron") and model == "experts" and ranks % 4 == 0:
        mesh["ep"] = chance.choice([2, 4])
    options: dict[str, Any] = {"use_orig_params": chance.random() < 0.5 or method == "lora"} if name == "fsdp1" else {}
    return small.scenario(name, mesh, model=MODELS[model], method=method,
                          options=options, microbatches=chance.choice([1, 2]))


def asked(name: str, seed: int) -> list[Scenario]:
    methods = METHODS if name != "megatron_fsdp" else ("full",)
    return [drawn(name, method, seed) for method in methods]


def per_rank(ranks: tuple[RankReport, ...], world: int) -> dict[int, RankReport]:
    return {number: rank for number in range(world) for rank in ranks if rank.has_rank(number)}


def owned(rank: RankReport) -> tuple[dict[str, AtRest], int, int]:
    return dict(rank.at_rest), rank.padding_bytes, rank.grads_padding_bytes


def stored(rank: RankReport) -> tuple[int, int]:
    """Bytes of parameters and of gradients with what storage adds."""
    rest = rank.at_rest.values()
    return (sum(r.params_bytes for r in rest) + rank.padding_bytes,
            sum(r.grads_bytes for r in rest) + rank.grads_padding_bytes)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_run_and_place_say_of_each_rank_what_is_said_of_it_alone(name: str, seed: int) -> None:
    for scenario in asked(name, seed):
        ran, placed = simulate(scenario, timed=False), place(scenario)
        assert (ran.status, placed.status) == ("ok", "ok"), ran.problems
        told, exact = (per_rank(report.ranks, scenario.world_size) for report in (ran, placed))
        for number, rank in exact.items():
            (alone,), (ran_alone,) = place(scenario, rank=number).ranks, simulate(scenario, rank=number).ranks
            assert not rank.apportioned
            assert owned(rank) == owned(alone) == owned(ran_alone), number
            if not told[number].apportioned:
                assert owned(told[number]) == owned(rank), number


@pytest.mark.parametrize("name", SHARES_PARTS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_apportioned_is_the_mean_of_the_ranks_and_storage_is_the_same(name: str, seed: int) -> None:
    """Up to an element of each tensor. Gradients under ZeRO-1 and 2 are as long as on the rank with the most."""
    for scenario in asked(name, seed):
        (told,), exact = simulate(scenario, timed=False).ranks, place(scenario).ranks
        assert told.apportioned
        assert told.num_ranks == sum(rank.num_ranks for rank in exact)
        for component, mean in told.at_rest.items():
            for field in ("params_bytes", "grads_bytes", "optimizer_bytes", "num_params", "num_trainable_params"):
                summed = sum(getattr(rank.at_rest.get(component, AtRest()), field) * rank.num_ranks for rank in exact)
                of_ranks = summed / told.num_ranks
                assert abs(getattr(mean, field) - of_ranks) <= 0.001 * of_ranks + 2_000, (component, field)
        assert {stored(rank)[0] for rank in exact} == {stored(told)[0]}
        assert max(stored(rank)[1] for rank in exact) == stored(told)[1]
        assert min(min(rank.padding_bytes, rank.grads_padding_bytes) for rank in (told, *exact)) >= 0


@pytest.mark.parametrize("name", [*SHARES_PARTS, "megatron"])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_said_to_rest_is_what_is_there_before_the_step(name: str, seed: int) -> None:
    """Gradients, with what storage adds: what the step's own program has allocated when the optimizer begins."""
    for scenario in asked(name, seed):
        mesh = scenario.mesh
        given: dict[str, Any] = {
            "model": MODELS["experts" if "nemotron" in str(scenario.model) else "dense"],
            "method": scenario.training.method, "options": dict(scenario.framework_options),
            "microbatches": scenario.num_microbatches}
        axes = {axis: getattr(mesh, axis) for axis in ("dp_shard", "dp_replicate", "ep") if getattr(mesh, axis) != 1}
        for rank in simulate(scenario, timed=False).ranks[:2]:
            number = next(n for n in range(scenario.world_size) if rank.has_rank(n))
            program = small.program_of(name, axes, rank=number, **given)
            slots, hooks, held = list(program.tables.slots), list(program.tables.hooks), 0
            for op, _, slot, size, *_ in program.columns.tolist():
                if op == Op.MARK and hooks[slot] == "opt:begin":
                    break
                held += size * (op in (Op.ALLOC, Op.FREE) and slots[slot][1] in GRADIENTS)
            assert stored(rank)[1] == held
