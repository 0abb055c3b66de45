"""The critic of verl's PPO: torch's own units and collectives of it, its phases, what it sends, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from checkout import ROOT
from every import expect_of_every
from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from rl.verl.test_step import STATE, asked
from simcore.frameworks.fsdp1.flat_parameters import flat_units
from simcore.program.outline import Phase
from simcore.recording.tape import Op
from simcore.results.report import Report
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import CRITIC, POLICY
from simcore.rl.step.policy import Critic, Policy
from simcore.rl.verl.step import Offloads, verl_step
from simcore.rl.verl.streams import Shared
from simcore.simulate import check, simulate
from small import plan_of, program_of
from truth_cases import told_layouts
from vllm.test_engine import H100

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/verl/critic-torch-2.13.0.json").read_text(encoding="utf-8"))
DRAWN: dict[str, Any] = json.loads((ROOT / "tests/truth/verl/drawn-critic-torch-2.13.0.json")
                                   .read_text(encoding="utf-8"))
"""Critics drawn by `draw_critic.py`."""
PRESETS = {"llama": "llama-3.2-3b", "qwen2": "qwen2.5-0.5b", "gemma2": "gemma-2-9b"}
BLOCK = {"micro_batch_size": 2, "values_batch_size": 2}
VALUES = Critic(Policy({"sharded_param": 2 * GIB}, {"opt_state": 4 * GIB}, {}, {}, {}, {"activation": GIB},
                       {"activation": 7 * GIB}, 300, 900), offloads_params=False, offloads_states=False)


def given(family: str, sizes: dict[str, Any] | None = None, *, checkpoint: bool = False) -> dict[str, Any]:
    overrides = {key: value for key, value in (sizes or TRUTH["sizes"][family]).items()
                 if key != "head_dim" or family != "qwen2"}
    return {"model": {"config": PRESETS[family], "overrides": overrides}, "implementation": "hf", "loss": "values",
            "recompute": "full" if checkpoint else "none", "precision": {"params": "fp32", "grad_reduce": "fp32"},
            "options": {"attn_implementation": "eager"} if family == "gemma2" else {}}


def expect_units_and_collectives(row: dict[str, Any]) -> None:
    case = row["case"]
    copies = case.get("copies", 1)
    mesh = {"dp_shard": case["ranks"] // copies, "dp_replicate": copies}
    rest = given(case["family"], case.get("sizes"), checkpoint=case.get("checkpoint", False))
    assert [[unit.numel, unit.shard] for unit in flat_units(plan_of("fsdp1", mesh, **rest))] == row["units"]
    if case["ranks"] > 1:
        program = program_of("fsdp1", mesh, **rest)
        comms = {number: kind for (kind, _, _), number in program.tables.comms.items()}
        ours = [[comms[slot], amount] for op, _, slot, amount, _, _ in program.columns.tolist() if op == Op.COLLECTIVE]
        assert ours == row["step"]


def test_a_value_heads_units_and_collectives_are_those_that_torch_makes_of_verls_policy() -> None:
    """verl's own get_fsdp_wrap_policy over AutoModelForTokenClassification: the head and its bias lie in the root."""
    rows = {f"{row['family']} over {row['ranks']}": row | {"case": row} for row in TRUTH["models"]} | DRAWN
    assert told_layouts("verl/drawn-critic-*") == (len(DRAWN), len(DRAWN))
    assert {row["case"].get("copies", 1) for row in DRAWN.values()} == {1, 2}
    expect_of_every(rows.items(), expect_units_and_collectives)


def test_the_loss_of_values_keeps_what_torch_keeps_of_verls() -> None:
    """Beside the indices of rows; a CPU casts the mask to fp32 too, 4 bytes a token."""
    rows = {row["tokens"]: row for row in [*TRUTH["loss"], *(row["loss"] for row in DRAWN.values())]}
    expect_of_every(((str(tokens), row) for tokens, row in rows.items()), expect_loss)


def expect_loss(row: dict[str, int]) -> None:
    tokens = row["tokens"]
    program = program_of("fsdp1", {"dp_shard": 1}, seq_len=tokens, **given("llama"))
    names = {number: owner for (owner, _), number in program.tables.slots.items()}
    sizes = [(names[slot], amount) for (op, _, slot, amount, _, _), phase in zip(
        program.columns.tolist(), program.phase.tolist(), strict=True)
        if phase == Phase.LOSS and op in (Op.ALLOC, Op.FREE)]
    made = [(name, size) for name, size in sizes if name not in ("rows", "hidden_states", "flat_param")]
    kept = sum(size for _, size in made)
    highest = max(sum(size for _, size in made[:count]) for count in range(len(made) + 1))
    assert kept == pytest.approx(row["kept"], abs=64)
    assert highest + 4 * tokens == pytest.approx(row["forward"], abs=64)


@pytest.mark.parametrize(("loss", "told"), [
    ("values", "not yet: a value head of nemotron_h on the layers of hf"),])
def test_families_without_such_a_head_are_refused(loss: str, told: str) -> None:
    report = simulate(asked(model="nemotron-3-tiny", workload="train", rl=None, generation=None, training__loss=loss))
    assert told in str(report.problems[0])


# ---- phases ----------------------------------------------------------------------------------------------------------
def step(*, params: bool, states: bool) -> Journal:
    critic = Critic(VALUES.model, params, states)
    settings = Offloads(params=False, optimizer=False, stream=Shared(2 * GIB), passes=4), STATE
    return verl_step(POLICY_OF, replace(turn(sleep_level=2), critic=critic), H100, settings)


def test_a_critic_makes_values_and_is_trained_before_the_policy() -> None:
    journal = step(params=False, states=False)
    assert [phase.phase for phase in journal.phases] == [
        "refit", "generation", "logprob", "reference", "values", "critic", "training"]
    assert [owned(journal, phase.phase, CRITIC) // GIB for phase in journal.phases] == [6, 6, 6, 6, 7, 13, 6]
    assert journal.phases[4].parts == {"forward passes": 300}
    assert journal.phases[5].parts == {"training steps": 900}
    assert owned(journal, "critic", POLICY) == 10 * GIB


def test_a_critic_on_the_host_comes_for_its_passes_and_its_states_for_training_alone() -> None:
    journal = step(params=True, states=True)
    assert [owned(journal, phase.phase, CRITIC) // GIB for phase in journal.phases] == [0, 0, 0, 0, 3, 13, 0]
    assert owned(journal, "generation", CRITIC, "host") == 6 * GIB
    moved = {way: copied.num_bytes // GIB for way, copied in journal.phases[5].copied.items()}
    assert moved == {"to_device": 6, "to_host": 6}
    parts = step(params=False, states=True)
    assert [owned(parts, phase.phase, CRITIC) // GIB for phase in parts.phases] == [2, 2, 2, 2, 3, 13, 2]


# ---- end to end ------------------------------------------------------------------------------------------------------
@lru_cache
def simulated(**changed: Any) -> Report:
    return simulate(asked(rl__critic=BLOCK | changed, training__seq_len=512, generation__max_model_len=512))


def test_a_step_with_a_critic_counts_every_byte_and_every_second() -> None:
    report = simulated()
    assert report.status == "ok", report.problems
    rank = report.ranks[0]
    assert rank.peak is not None
    assert report.time is not None
    assert sum(rank.peak.by_category.values()) == rank.peak.allocated_bytes
    for phase in report.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    parts, seconds = report.time.parts, {phase.phase: phase.seconds for phase in report.phases}
    assert sum(parts.values()) == pytest.approx(report.time.step_s)
    assert parts["values"] == pytest.approx(seconds["values"])
    assert parts["critic"] == pytest.approx(seconds["critic"])
    assert [row.what for row in report.assumptions].count("rl.critic") == 1


def test_a_critic_sends_what_its_own_training_step_sends() -> None:
    """Its steps are four of 8 sequences, one microbatch of a sequence a rank with a batch of 8 beside 8 ranks."""
    changed = {"micro_batch_size": 1, "global_batch_size": 8}
    rows = {(row.collective, row.axis): row for row in simulated(**changed).ranks[0].traffic if row.phase == "critic"}
    alone = simulate(asked(workload="train", rl=None, generation=None, training__loss="values",
                           training__seq_len=512, training__global_batch_size=8))
    assert alone.status == "ok", alone.problems
    theirs = [row for row in alone.ranks[0].traffic if row.axis == "dp_shard"]
    for kind in ("all_gather", "reduce_scatter"):
        assert rows[kind, "dp_shard"].wire_bytes == 4 * sum(r.wire_bytes for r in theirs if r.collective == kind) > 0
    assert simulated(**changed).phases[-2].seconds == pytest.approx(4 * (alone.time.step_s if alone.time else 0))


def test_a_larger_critic_is_larger_and_slower() -> None:
    small, large = ({phase.phase: phase for phase in report.phases}
                    for report in (simulated(), simulated(model="llama-3.2-1b")))
    assert large["generation"].by_owner["critic"] > 4 * small["generation"].by_owner["critic"]
    assert large["critic"].seconds > small["critic"].seconds
    assert large["generation"].by_owner["policy"] == small["generation"].by_owner["policy"]


def test_what_a_critic_cannot_be_is_refused_at_its_block() -> None:
    for told, critic in (
            ("critic: global_batch_size: expected a divisor of prompts x generations = 32, got 12", {
                "global_batch_size": 12}),
            ("critic: training.global_batch_size: expected a multiple of 64", {"micro_batch_size": 8}),
            ("critic: unknown model 'nothing'", {"model": "nothing"}),
            ("critic: not yet: a value head of nemotron_h", {"model": "nemotron-3-tiny"})):
        scenario = asked(rl__critic=critic)
        assert any(told in str(one) for one in simulate(scenario).problems), told
        assert any(told in str(one) for one in check(scenario).problems), told
    report = simulate(asked(rl__trainer="nemo_rl", rl__critic=BLOCK, framework="fsdp2", training__loss="hf"))
    assert "critic: not yet: values under fsdp2" in str(report.problems[0])
