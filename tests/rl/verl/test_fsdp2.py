"""verl's workers over FSDP 2: verl's own units and torch's collectives of them, a state dict, phases, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from every import expect_of_every
from rl.step.test_critic import PRESETS
from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from rl.verl.test_step import asked
from simcore.recording.tape import Op
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import ENGINE, POLICY, REFERENCE
from simcore.rl.verl.fsdp2 import Referred, turned
from simcore.rl.verl.step import Offloads, verl_step
from simcore.rl.verl.streams import Shared
from simcore.simulate import check, simulate
from small import plan_of, program_of
from truth_cases import told_layouts
from vllm.test_engine import H100

DRAWN: dict[str, Any] = json.loads((ROOT / "tests/truth/verl/drawn-fsdp2-torch-2.13.0.json")
                                   .read_text(encoding="utf-8"))
"""Actors and critics drawn by `draw_verl_fsdp2.py`."""
BASE: dict[str, Any] = {"framework": "fsdp2", "framework_options": {
    "wrap": "separate_embedding", "reshard_after_forward": True, "attn_implementation": "flash_attention_2",
    "sync_gradients": "every", "recompute_by": "transformers"}}
STATE = Referred(part=GIB // 4, passing={"activation": 2 * GIB})
HOST = dict.fromkeys(("params", "gradients", "optimizer"), "host")


def given(case: dict[str, Any]) -> dict[str, Any]:
    sizes, family = case["sizes"], case["family"]
    overrides = {key: value for key, value in sizes.items() if key != "head_dim" or family != "qwen2"}
    wrap = "layers_root" if sizes["tie_word_embeddings"] else "separate_embedding"
    stored = case.get("stored", "fp32")
    return {"model": {"config": PRESETS[family], "overrides": overrides}, "implementation": "hf",
            "loss": "values" if case["role"] == "critic" else "flash",
            "recompute": "full" if case.get("checkpoint") else "none", "precision": {"params": stored,
                                                                                      "grad_reduce": "fp32"},
            "options": {"wrap": wrap, "reshard_after_forward": case.get("reshard", True),
                        **({"attn_implementation": "eager"} if family == "gemma2" else {}),
                        **({"recompute_by": "transformers"} if case.get("checkpoint") else {})}}


def expect_parts_and_collectives(row: dict[str, Any]) -> None:
    case = row["case"]
    copies = case.get("copies", 1)
    mesh = {"dp_shard": case["ranks"] // copies, "dp_replicate": copies}
    plan = plan_of("fsdp2", mesh, **given(case))
    assert len(turned(plan)) == sum(dim > 0 for _, dim in row["parts"].values())
    if turned(plan):  # refused
        return
    ours = [placed.rest_bytes for layer in plan.layers for placed in plan.of_layer(layer)
            if placed.spec.is_owned and not placed.spec.is_buffer]
    width = 2 if case.get("stored") else 4
    assert sorted(ours) == sorted(size * width for size, _ in row["parts"].values())
    assert row["state_dict"] == {"made": 0, "held": sum(ours)}
    program = program_of("fsdp2", mesh, **given(case))
    comms = {number: kind for (kind, _, _), number in program.tables.comms.items()}
    calls = [[comms[slot], amount] for op, _, slot, amount, _, _ in program.columns.tolist() if op == Op.COLLECTIVE]
    assert calls == row["step"]


def test_parts_collectives_and_state_dicts_are_those_that_torch_makes_of_verls_units() -> None:
    """verl's own apply_fsdp2 and get_shard_placement_fn; where the first dimension stays whole, it is refused."""
    others = {name for name, row in DRAWN.items() if any(dim for _, dim in row["parts"].values())}
    assert others
    assert {row["case"]["role"] for row in DRAWN.values()} == {"actor", "critic"}
    assert told_layouts("verl/drawn-fsdp2-*") == (len(DRAWN), len(DRAWN) - len(others), len(others))
    expect_of_every(DRAWN.items(), expect_parts_and_collectives)


# ---- phases ----------------------------------------------------------------------------------------------------------
def step(*, params: bool, optimizer: bool) -> Journal:
    return verl_step(POLICY_OF, turn(sleep_level=2), H100, (Offloads(params, optimizer, Shared(2 * GIB), passes=4),
                                                            STATE))


def test_a_state_dict_holds_the_parts_of_parameters_that_have_gone_until_all_were_sent() -> None:
    for goes in (False, True):
        journal = step(params=goes, optimizer=goes)
        streamed = [entry for entry in journal.entries if entry.phase == 0 and entry.spike]
        held = max((entry.held for entry in streamed), key=lambda one: one["refit", "buffer"])
        assert held["policy, state dict", "sharded_param"] == (POLICY_OF.params["sharded_param"] if goes else 0)
        assert held[POLICY, "sharded_param"] == (0 if goes else POLICY_OF.params["sharded_param"])
        assert not any(name == "policy, state dict" for name, _ in journal.phases[1].device)
        assert owned(journal, "refit", ENGINE) > 0


def test_the_reference_policys_parts_come_from_the_host_in_each_pass() -> None:
    journal = step(params=True, optimizer=True)
    assert owned(journal, "reference", REFERENCE) == 2 * GIB
    copied = journal.phases[3].copied["to_device"]
    assert (copied.calls, copied.num_bytes) == (1, 4 * POLICY_OF.copied["sharded_param"])


def test_an_actor_on_the_host_is_there_in_no_phase_and_is_gathered_through_the_device() -> None:
    """offload_policy: parameters, gradients and states stay on the host."""
    stays, rests = simulate(asked(**BASE)), simulate(asked(**BASE, training__offload=HOST))
    of = [{phase.phase: phase for phase in report.phases} for report in (stays, rests)]
    assert not stays.problems
    for name in ("generation", "logprob", "training"):
        assert of[1][name].device_bytes < of[0][name].device_bytes
        assert of[1][name].host_bytes > of[0][name].host_bytes
    assert of[1]["reference"].by_owner[REFERENCE] == of[0]["reference"].by_owner[REFERENCE]
    for phase in rests.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes


def test_a_critic_is_cut_as_the_actor_is() -> None:
    report = simulate(asked(**BASE, rl__critic={"micro_batch_size": 2, "values_batch_size": 2}))
    assert not report.problems
    assert [phase.phase for phase in report.phases][-3:] == ["values", "critic", "training"]


@pytest.mark.parametrize(("told", "changed"), [
    ("with layers of automodel", {"framework": "automodel", "framework_options": {}, "training__loss": "auto"}),
    ("adapters of verl's workers over FSDP 2", {"training__method": "lora"}),
    ("wrap: expected separate_embedding", {"framework_options": {"reshard_after_forward": True}}),
    ("reshard_after_forward: expected true or false", {"framework_options": {"wrap": "separate_embedding"}}),
    ("verl cuts the first dimension that they divide", {"model": {"config": "llama-tiny", "overrides": {
        "vocab_size": 64001}}}),
    ("param_offload: changes nothing with parameters on the host", {"training__offload": HOST,
                                                                    "rl__param_offload": True}),
    ("reference: device: the reference policy lies on the host", {"rl__reference": "device"})])
def test_what_these_workers_do_not_do_is_refused(told: str, changed: dict[str, Any]) -> None:
    scenario = asked(**{**BASE, **changed})
    for found in (simulate(scenario), check(scenario)):
        assert any(told in str(problem) for problem in found.problems), found.problems


def test_verls_losses_are_none_of_nemo_rls() -> None:
    found = simulate(asked(**BASE, rl__trainer="nemo_rl"))
    assert "NeMo RL with the loss flash of verl's workers" in str(found.problems[0])


def test_a_vision_tower_is_refused_until_its_units_are_known() -> None:
    scenario = asked(**BASE, model="qwen2.5-vl-7b", mesh={"dp_shard": 4}, training__frozen=["model.visual"],
                     training__images=1, training__image_height=448)
    found = check(scenario)
    assert found.problems
    assert any("tower" in str(problem) for problem in found.problems), found.problems
