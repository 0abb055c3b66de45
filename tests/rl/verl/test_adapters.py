"""Adapters of verl's actor: what is summoned and sent, who is where, and what an engine or a reference must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from rl.verl.test_step import STATE, asked
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import POLICY, REFERENCE
from simcore.rl.verl.adapters import Adapted, adapted
from simcore.rl.verl.step import Offloads, verl_step
from simcore.rl.verl.streams import Shared
from simcore.simulate import simulate
from small import plan_of
from vllm.test_engine import H100

SIZES: Final = Adapted(whole=12 * GIB, layer=2 * GIB, adapters=GIB, base=6 * GIB, calls=(), layered=False, ranks=8)
TARGETS: Final = ["q_proj", "down_proj"]
LORA: dict[str, Any] = {
    "training__method": "lora", "training__lora": {"rank": 8, "target_modules": TARGETS, "dtype": "fp32"},
    "framework_options": {"wrap": "layers_adapters"}, "rl__reference": "device", "generation__max_loras": 1}


def step(*, params: bool = False, **changed: Any) -> Journal:
    settings = Offloads(params, optimizer=False, stream=Shared(2 * GIB), passes=4,
                        adapted=replace(SIZES, **changed)), STATE
    asked_turn = turn(sleep_level=2)
    weights = replace(asked_turn.gathered, total=GIB if changed.get("layered") else 7 * GIB)
    return verl_step(POLICY_OF, replace(asked_turn, gathered=weights), H100, settings)


def test_whole_parameters_lie_twice_on_the_device_and_once_on_the_host() -> None:
    """The module comes back from the host beside the whole flat parameters; without a gather those are at rest."""
    for changed, device, host in (({}, 24, 13), ({"ranks": 1}, 12, 13), ({"layered": True}, 2, 1),
                                  ({"layered": True, "ranks": 1}, 0, 1)):
        journal = step(**changed)
        summoned = [entry.held["policy, state dict", "all_gather_output"] for entry in journal.entries
                    if entry.phase == 0]
        assert max(summoned) == device * GIB, changed
        assert owned(journal, "refit", "policy, state dict", "host") == host * GIB
        assert owned(journal, "generation", "policy, state dict", "host") == 0
    copied = step().phases[0].copied
    assert {way: one.num_bytes // GIB for way, one in copied.items()} == {"to_host": 13, "to_device": 12 + 7}


def test_an_actor_with_adapters_is_its_own_reference_policy() -> None:
    journal = step(params=True)
    assert [phase.phase for phase in journal.phases] == ["refit", "generation", "logprob", "reference", "training"]
    assert {owned(journal, phase.phase, REFERENCE, "host") for phase in journal.phases} == {0}
    assert owned(journal, "reference", POLICY) == owned(journal, "logprob", POLICY)


def test_sizes_are_those_of_the_units() -> None:
    """llama-tiny's matrices of rank 8; layers alone are gathered one by one."""
    plan = plan_of("fsdp1", {"dp_shard": 4}, model="llama-tiny", implementation="hf", method="lora",
                   precision={"params": "fp32"}, lora={"rank": 8, "target_modules": TARGETS, "dtype": "fp32"},
                   options={"wrap": "layers_adapters"})
    kinds = [(placed.spec, count) for kind, count in plan.kind_counts for placed in plan.kinds[kind]
             if placed.spec.is_owned and not placed.spec.is_buffer]
    adapters, base = (sum(spec.numel * count for spec, count in kinds if (spec.module == "adapter") == wanted)
                      for wanted in (True, False))
    found, layered = (adapted(plan, layered=one) for one in (False, True))
    assert (found.whole, found.adapters, found.base) == (4 * (adapters + base), 2 * adapters, 2 * base)
    root = sum(spec.numel * count for spec, count in kinds if spec.component in ("embedding", "lm_head"))
    norm = next(spec.numel for spec, _ in kinds if spec.path == "" and spec.module == "norm")
    blocks = plan.graph.num_blocks
    assert found.layer * blocks == found.whole - 4 * (root + norm)
    assert sum(call.num_bytes for call in found.calls) == found.whole
    assert sum(call.num_bytes for call in layered.calls) == found.layer * blocks


def test_a_step_with_adapters_counts_every_byte_and_sends_little() -> None:
    whole, layered = (simulate(asked(**LORA, rl__layered_summon=one)) for one in (False, True))
    for report in (whole, layered):
        assert report.status == "ok", report.problems
        for phase in report.phases:
            assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    refits = [{row.axis: row.payload_bytes for row in report.ranks[0].traffic if row.phase == "refit"}
              for report in (whole, layered)]
    assert refits[0]["dp_shard"] > 2 * refits[1]["dp_shard"]
    assert refits[0]["to_device"] > 10 * refits[1]["to_device"]
    told = [any(row.what == "rl.layered_summon" for row in report.assumptions) for report in (whole, layered)]
    assert told == [False, True]
    with_critic = simulate(asked(**LORA, rl__critic={"micro_batch_size": 2}))
    assert with_critic.status == "ok", with_critic.problems


@pytest.mark.parametrize(("told", "changed"), [
    ("max_loras: 0: expected 1 and max_lora_rank: 8 or more", {"generation__max_loras": 0}),
    ("expected 1 and max_lora_rank: 32 or more", {"training__lora": {"rank": 32, "dtype": "fp32",
                                                                     "target_modules": TARGETS}}),
    ("an actor with adapters is its own reference policy", {"rl__reference": "host"}),
    ("no units of their own", {"framework_options": {"use_orig_params": True}})])
def test_what_does_not_suit_an_actors_adapters_is_refused(told: str, changed: dict[str, Any]) -> None:
    assert any(told in str(problem) for problem in simulate(asked(**LORA | changed)).problems)


def test_a_reference_policy_without_adapters_is_not_on_the_device() -> None:
    for changed, told in (({"rl__reference": "device"}, "the reference policy lies on the host"),
                          ({"rl__layered_summon": True}, "layered_summon: changes nothing without adapters"),
                          (LORA | {"generation__engine": "sglang"}, "adapters in SGLang"),
                          ({"generation__max_loras": 1}, "expected 0, as the actor has no adapters")):
        assert any(told in str(problem) for problem in simulate(asked(**changed)).problems), told
