"""A step of OpenRLHF: which model is where in each phase, what sleeps, what is refused and by which rule."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.simulate import check, simulate

BASE: Final[dict[str, Any]] = {
    "name": "t", "workload": "grpo", "model": "llama-tiny", "framework": "zero3", "topology": "dgx-h100",
    "mesh": {"dp_shard": 4}, "training": {"seq_len": 256, "micro_batch_size": 4, "global_batch_size": 64},
    "rl": {"trainer": "openrlhf", "prompts": 8, "generations": 8, "prompt_tokens": 64, "reference": "device",
           "optimizer_offload": True},
    "generation": {"max_model_len": 256, "sleep_level": 1, "gpu_memory_utilization": 0.5}}
PPO: Final[dict[str, Any]] = {"rl": {"critic": {}, "reward": {"model": "llama-tiny"}}}
AWAKE: Final[dict[str, Any]] = {"rl": {"critic": {}, "optimizer_offload": False}}
NUMEL: Final = 3_414_272
"""Parameters of llama-tiny."""
LARGEST: Final = 1000 * 256
BUCKET: Final = 2 * 500_000_000
FRAMEWORKS: Final = ("zero1", "zero2", "zero3")


def asked(**changed: Any) -> Any:
    data = json.loads(json.dumps(BASE))
    for name, value in changed.items():
        data[name] = data[name] | value if isinstance(value, dict) and name != "mesh" else value
    return parse_scenario(parse_document(json.dumps(data), "t.yaml"))


def stepped(**changed: Any) -> Report:
    report = simulate(asked(**changed))
    assert report.status == "ok", report.problems
    return report


def owned(report: Report, phase: str, owner: str) -> int:
    return next(one for one in report.phases if one.phase == phase).by_owner.get(owner, 0)


def on_host(report: Report, phase: str) -> dict[str, int]:
    return next(one for one in report.phases if one.phase == phase).host_by_owner


def refused(**changed: Any) -> Any:
    report = check(asked(**changed))
    assert report.problems
    return report.problems[0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_counts_every_byte_of_all_models(framework: str) -> None:
    scored, learned = ["logprob", "reference"], ["training", "refit"]
    for more, phases in (({}, ["generation", *scored, *learned]),
                         (PPO, ["generation", "reward", "logprob", "values", "reference", "critic", *learned]),
                         (AWAKE, ["generation", "logprob", "values", "reference", "critic", *learned]),
                         ({"rl": {"reference": "none"}}, ["generation", "logprob", *learned])):
        report = stepped(framework=framework, **more)
        assert [phase.phase for phase in report.phases] == phases
        for phase in report.phases:
            assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
            assert phase.seconds > 0
        assert report.time is not None
        assert sum(report.time.parts.values()) == pytest.approx(report.time.step_s)


def test_asleep_the_policy_has_its_parameters_alone() -> None:
    """Masters and moments in fp32 leave each rank's part; ZeRO 3 also leaves its gradients, and drops the bucket."""
    part = NUMEL // 4
    for framework, more in (("zero2", 0), ("zero3", 2 * part + BUCKET)):
        asleep, awake = (owned(stepped(framework=framework, rl={"optimizer_offload": on}), "generation", "policy")
                         for on in (True, False))
        gathered = 0 if framework == "zero2" else GATHERED
        assert awake - asleep == 12 * part + more + gathered


GATHERED: Final = 1_577_472
"""Bytes of norms, and of projections of 65,536 elements or fewer, in 16 bits."""


def test_host_buffers_of_zero_3_stay_and_those_of_zero_2_come_and_go() -> None:
    part = NUMEL // 4
    three, two = (stepped(framework=name) for name in ("zero3", "zero2"))
    assert {on_host(three, phase)["policy, pinned states"] for phase in ("logprob", "training")} == {14 * part}
    assert on_host(two, "logprob")["policy"] == 12 * part
    moved = [row for row in two.ranks[0].traffic if row.collective == "copy" and row.phase == "training"]
    assert {row.axis: row.payload_bytes for row in moved} == {"to_host": 12 * part, "to_device": 12 * part}


def test_models_without_an_optimizer_are_whole_unless_stage_3_shards_them() -> None:
    two, three = (stepped(framework=name, **PPO) for name in ("zero2", "zero3"))
    for owner, numel in (("reference policy", NUMEL), ("reward model", NUMEL - LARGEST + 256)):
        difference = owned(two, "refit", owner) - owned(three, "refit", owner)
        assert difference == pytest.approx(2 * numel * 3 / 4 - GATHERED, abs=4096)


def test_a_critic_trains_in_its_turn_or_beside_the_policy() -> None:
    turns, beside = stepped(framework="zero2", **PPO), stepped(framework="zero2", **AWAKE)
    assert owned(turns, "training", "critic, training") == owned(turns, "critic", "policy, training") == 0
    assert owned(turns, "training", "critic") < owned(turns, "critic", "critic")
    for phase, owner, other in (("critic", "critic", "policy"), ("training", "policy", "critic")):
        assert owned(beside, phase, f"{other}, training") > 0
        assert owned(beside, phase, owner) > owned(beside, "refit", owner)


def test_vllm_wakes_its_weights_alone_to_be_sent_others() -> None:
    """Its cache wakes to generate; both are away while models score and train."""
    report = stepped()
    generating, waking, away = (owned(report, phase, "engine") for phase in ("generation", "refit", "logprob"))
    assert waking - away == pytest.approx(2 * NUMEL, rel=0.1)
    assert generating > 10 * waking
    level = stepped(generation={"sleep_level": 0})
    assert owned(level, "training", "engine") > 10 * waking


def test_a_parameter_is_cloned_for_an_engine_on_the_same_gpu() -> None:
    """And gathered before, where ranks share it."""
    sizes = {name: owned(stepped(framework=name), "refit", "refit") for name in FRAMEWORKS}
    assert sizes == {"zero1": 2 * LARGEST, "zero2": 2 * LARGEST, "zero3": 4 * LARGEST}
    made = sum(row.payload_bytes for row in stepped().ranks[0].traffic if row.phase == "refit"
               and row.collective == "all_gather")
    assert made == 2 * NUMEL


def test_engines_apart_are_sent_each_parameter() -> None:
    report = stepped(generation={"colocated": False, "tp": 2, "engines": 2, "sleep_level": 0})
    assert (report.ranks[-1].ranks, report.ranks[-1].num_ranks) == (("4-7",), 4)
    sent = [row for row in report.ranks[0].traffic if row.collective == "broadcast" and row.phase == "refit"]
    assert (sum(row.payload_bytes for row in sent), sent[0].group_size) == (2 * NUMEL, 5)


@pytest.mark.parametrize(("changed", "status", "words"), [
    ({"framework": "fsdp2"}, "illegal", "engines of DeepSpeed"),
    ({"framework": "zero0", "mesh": {"dp_replicate": 4}}, "error", "sleep of OpenRLHF under zero0"),
    ({"generation": {"sleep_level": 2}}, "illegal", "expected 1"),
    ({"generation": {"tp": 3}}, "illegal", "must be equal to vllm_num_engines"),
    ({"generation": {"colocated": False, "sleep_level": 1}}, "illegal", "is awake"),
    ({"generation": {"colocated": False, "sleep_level": 0}, "rl": {"critic": {}}}, "error", "GPUs of its own"),
    ({"generation": {"engine": "sglang"}}, "error", "sglang beside OpenRLHF"),
    ({"rl": {"reference": "host"}, "framework": "zero2"}, "illegal", "stays on the device"),
    ({"rl": {"reference": "host"}}, "error", "ref.offload"),
    ({"rl": {"asynchronous": True}}, "error", "asynchronous"),
    ({"rl": {"refit_bucket": 1024}}, "error", "changes nothing"),
    ({"rl": {"critic": {"recompute": "full"}}}, "error", "all but the model"),
    ({"rl": {"prompt_tokens": 256}}, "error", "fewer than"),
    ({"rl": {"logprob_batch_size": 3}}, "error", "multiple"),
    ({"training": {"offload": {"params": "host"}}}, "illegal", "on the device"),
    ({"training": {"offload": {"optimizer": "host"}}}, "error", "changes nothing with an optimizer on the host"),
    ({"training": {"loss": "hf"}}, "error", "another loss"),
    ({"mesh": {"dp_shard": 2, "cp": 2}}, "error", "ring-flash-attn"),
    ({"mesh": {"dp_shard": 2, "tp": 2}}, "error", "tensor, pipeline"),
    ({"workload": "distillation"}, "error", "distillation of OpenRLHF")])
def test_what_is_refused_says_why(changed: dict[str, Any], status: str, words: str) -> None:
    report = simulate(asked(**changed))
    assert report.status == status, report.problems
    assert words in report.problems[0].message
