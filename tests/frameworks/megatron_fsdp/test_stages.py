"""Pipeline stages under Megatron-FSDP, against core's own 1F1B over its own hooks."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fsdp_truth
import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.simulate import simulate

MAIN = "main 2026-08-22"
HERE = ROOT / "tests/truth/megatron_fsdp"
CASES: list[tuple[str, dict[str, Any]]] = [
    (version, case) for version in ("core 0.16.1", MAIN)
    for case in json.loads((HERE / f"{version.replace(' ', '-')}.json").read_text("utf-8"))["stages"]]
RUN = [pytest.param(version, case, id="-".join([version, *(f"{k}={v}" for k, v in case.items() if k != "found")]))
       for version, case in CASES if not case.get("frees_outputs")]
KEEPS = fsdp_truth.KEEPS


@pytest.mark.parametrize(("version", "case"), RUN)
def test_a_stage_is_the_real_one(version: str, case: dict[str, Any]) -> None:
    """Gathers, releases and reductions of one stage's passes, in the order of 1F1B."""
    assert not fsdp_truth.differs_in_stage(version, case)


def test_a_stage_that_frees_what_it_has_sent_is_refused_upstream() -> None:
    """By both versions, on every stage but the last; there is no way to say otherwise in Megatron-LM."""
    freed = [(case["stage"], case["found"][-1]) for _, case in CASES if case.get("frees_outputs")]
    told = "AssertionError: counter-productive to free a view of another tensor."
    assert [last for stage, last in freed if stage == 0] == [told, told]
    assert all(told not in last for stage, last in freed if stage == 1)
    for version in ("core 0.16.1", MAIN):
        with pytest.raises(IllegalLayout, match="counter-productive to free a view of another tensor"):
            small.prepared("megatron_fsdp", {"pp": 2, "dp_shard": 2}, model="llama-tiny", version=version)


@pytest.mark.parametrize(("told", "mesh", "given"), [
    ("virtual stages", {}, {"pipeline": {"virtual_stages": 2}}), ("copies over", {"dp_replicate": 2}, {}),
    ("a tied head", {}, {"model": {"config": "llama-3.2-1b", "overrides": {"num_hidden_layers": 4}}}),
    ("a number of buckets", {}, {"options": KEEPS | {"num_buckets": 2}})])
def test_what_of_stages_is_not_served(told: str, mesh: dict[str, int], given: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": "llama-tiny", "options": KEEPS, "microbatches": 4} | given
    with pytest.raises(NotYet, match=told):
        small.prepared("megatron_fsdp", {"pp": 2, "dp_shard": 2, **mesh}, **asked)


def test_outputs_stay_until_their_backward() -> None:
    """The first stage of two has two in flight: each hidden state of 64 tokens stays, in 16 bits."""
    reports = {}
    for framework, options in (("megatron", {}), ("megatron_fsdp", KEEPS)):
        reports[framework] = simulate(small.scenario(framework, {"pp": 2, "dp_shard": 2}, model="llama-tiny",
                                                     microbatches=4, options=options, seq_len=2048))
    assert reports["megatron"].status == reports["megatron_fsdp"].status == "ok"
    assert reports["megatron_fsdp"].time is not None
    made = [small.program_of(framework, {"pp": 2, "dp_shard": 2}, model="llama-tiny", microbatches=4, options=options)
            for framework, options in (("megatron", {}), ("megatron_fsdp", KEEPS))]
    sent = [sorted(small.calls(one, "send_recv")) for one in made]
    assert sent[0] == sent[1]
    assert sent[0]
