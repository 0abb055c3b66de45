"""A step of TRL's GRPO: who is where in each phase, how many passes, what is refused and by which rule."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.simulate import check, simulate

BASE: Final[dict[str, Any]] = {
    "name": "t", "workload": "grpo", "model": "llama-tiny", "framework": "zero2", "topology": "dgx-h100",
    "mesh": {"dp_shard": 4}, "training": {"seq_len": 256, "micro_batch_size": 4, "global_batch_size": 64},
    "rl": {"trainer": "trl", "prompts": 8, "generations": 8, "prompt_tokens": 64},
    "generation": {"max_model_len": 256}}
ITSELF: Final[dict[str, Any]] = {"generation": {"engine": "transformers"}, "rl": {"on_policy_ratio": True}}
LORA: Final[dict[str, Any]] = {"method": "lora", "lora": {"rank": 8, "target_modules": ["q_proj", "down_proj"],
                                                          "dtype": "fp32"}}
WHOLE: Final = 6_828_544
"""Bytes of llama-tiny in 16 bits."""
FRAMEWORKS: Final = {"ddp": "dp_replicate", "zero1": "dp_shard", "zero2": "dp_shard", "zero3": "dp_shard",
                     "fsdp1": "dp_shard", "fsdp2": "dp_shard"}


def asked(**changed: Any) -> Any:
    data = json.loads(json.dumps(BASE))
    if "transformers" in str(changed.get("generation")):
        data["generation"] = {}
    for name, value in changed.items():
        data[name] = data[name] | value if isinstance(value, dict) and name != "mesh" else value
    return parse_scenario(parse_document(json.dumps(data), "t.yaml"))


def stepped(**changed: Any) -> Report:
    report = simulate(asked(**changed))
    assert report.status == "ok", report.problems
    return report


def owned(report: Report, phase: str, owner: str) -> int:
    return next(one for one in report.phases if one.phase == phase).by_owner.get(owner, 0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_counts_every_byte_under_each_framework(framework: str) -> None:
    mesh = {FRAMEWORKS[framework]: 4}
    for more, phases in (({"rl": {"reference": "device"}}, ["refit", "generation", "logprob", "reference", "training"]),
                         (ITSELF, ["generation", "training"])):
        report = stepped(framework=framework, mesh=mesh, **more)
        assert [phase.phase for phase in report.phases] == phases
        for phase in report.phases:
            assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
            assert phase.seconds > 0
            assert phase.host_bytes == 0


def test_an_engine_without_sleep_stays_beside_training() -> None:
    """Asleep it drops weights and cache; what is captured in CUDA graphs stays in either."""
    awake, asleep = stepped(), stepped(generation={"sleep_level": 2})
    assert owned(awake, "training", "engine") > 10 * owned(asleep, "training", "engine") > 0
    assert owned(awake, "generation", "engine") == owned(asleep, "generation", "engine")
    assert owned(asleep, "refit", "engine") < owned(awake, "refit", "engine")


def test_an_engine_shares_the_context_of_the_process_that_trains() -> None:
    report = stepped()
    contexts = [phase.by_category.get("context") for phase in report.phases]
    assert len(set(contexts)) == 1
    assert report.ranks[0].peak is not None
    assert contexts[0] == report.ranks[0].peak.outside["context"]


def test_a_reference_model_is_whole_but_under_what_shards_parameters() -> None:
    """With adapters there is none: the policy passes without them."""
    sizes = {name: owned(stepped(framework=name, mesh={axis: 4}, rl={"reference": "device"}), "training",
                         "reference policy") for name, axis in FRAMEWORKS.items()}
    assert sizes["ddp"] == sizes["zero1"] == sizes["zero2"]
    assert sizes["zero3"] < sizes["zero2"] / 3
    assert sizes["fsdp1"] == pytest.approx(sizes["ddp"] / 2, rel=0.02)  # in fp32, on a fourth of the ranks
    wide, narrow = (owned(stepped(framework="fsdp2", rl={"reference": "device", "reference_params": dtype}), "training",
                          "reference policy") for dtype in ("fp32", "bf16"))
    assert wide == 2 * narrow == sizes["fsdp2"]
    adapted = stepped(framework="ddp", mesh={"dp_replicate": 4}, training=LORA, rl={"reference": "device"})
    assert owned(adapted, "training", "reference policy") == 0
    assert "reference" in [phase.phase for phase in adapted.phases]


def test_a_reference_in_one_unit_is_there_twice_while_it_passes() -> None:
    """FSDP2 keeps the output of the all-gather beside what is copied out of it (probe_pairs_fsdp2.py)."""
    report = stepped(framework="fsdp2", rl={"reference": "device"})
    found = next(phase for phase in report.phases if phase.phase == "reference")
    assert [found.by_category[name] for name in ("unsharded_param", "all_gather_output")] == [WHOLE, WHOLE]


def test_weights_are_gathered_as_the_framework_holds_them() -> None:
    """Under ZeRO 3 adapters are merged into a model that is whole."""
    made = {name: sum(row.payload_bytes for row in stepped(framework=name, mesh={axis: 4}).ranks[0].traffic
                      if row.phase == "refit") for name, axis in FRAMEWORKS.items()}
    assert made["ddp"] == made["zero1"] == made["zero2"] == 0
    assert made["fsdp2"] == made["fsdp1"] == 2 * made["zero3"] == 2 * WHOLE
    alone, adapted = (owned(stepped(framework="zero3", **more), "refit", "refit") for more in (
        {}, {"training": LORA | {"lora": {**LORA["lora"], "dtype": "auto"}}}))
    assert alone == 2 * 1000 * 256  # the embedding's
    assert adapted > WHOLE
    merged = owned(stepped(framework="ddp", mesh={"dp_replicate": 4}, training=LORA), "refit", "refit")
    assert merged == 2 * 4 * 256 * 688


def test_a_server_has_gpus_of_its_own() -> None:
    report = stepped(generation={"colocated": False, "tp": 2})
    assert (report.ranks[-1].ranks, report.ranks[-1].num_ranks) == (("4-5",), 2)
    sent = [row for row in report.ranks[0].traffic if row.collective == "broadcast" and row.phase == "refit"]
    assert sum(row.payload_bytes for row in sent) > 0
    assert sent[0].group_size == 3


def test_steps_and_generations_need_not_be_alike() -> None:
    """64 sequences are generated at once: for half an optimizer step, for one, for two; or trained on twice."""
    for batch, epochs, passes, steps in ((128, 1, 2, 1), (64, 1, 1, 1), (32, 1, 1, 2), (64, 2, 1, 2), (128, 2, 1, 1)):
        report = stepped(training={"global_batch_size": batch}, rl={"epochs": epochs})
        assert report.time is not None
        one = simulate(asked(workload="train", training={"global_batch_size": batch, "loss": "fused_lm_head",
                                                         "scored_tokens": 192}, rl={}, generation={}))
        assert one.time is not None
        seconds = {phase.phase: phase.seconds for phase in report.phases}
        assert seconds["training"] == pytest.approx(steps * one.time.step_s, rel=1e-6), batch
        assert seconds["logprob"] == pytest.approx(passes * SCORED, rel=0.01), batch


SCORED: Final = next(phase.seconds for phase in stepped().phases if phase.phase == "logprob")


def test_gradients_are_beside_a_second_generation() -> None:
    once, twice = (stepped(training={"global_batch_size": batch}, generation={"sleep_level": 2})
                   for batch in (64, 128))
    assert owned(once, "generation", "policy, gradients") == 0
    assert owned(twice, "generation", "policy, gradients") > 0
    assert owned(once, "training", "policy") == owned(twice, "training", "policy")


def test_parameters_are_whole_while_a_sharded_policy_generates() -> None:
    gathered, each = (stepped(framework="zero3", generation={"engine": "transformers"},
                              rl={"on_policy_ratio": True, "gather_for_generation": on}) for on in (True, False))
    assert gathered.phases[0].by_category["unsharded_param"] >= WHOLE
    times = [report.phases[0].seconds for report in (gathered, each)]
    assert times[0] < times[1]


OLD: Final = {"0.18.0": True, "0.19.1": True, "0.24.0": False, "0.27.2": False}
"""Releases, and whether sequences of vLLM are trained on by its own log-probabilities."""


def test_older_releases_have_whole_logits_and_other_phases() -> None:
    """0.18 passes through the reference model beside a microbatch's graph, later ones before it."""
    found = {}
    for version, on_policy in OLD.items():
        report = found[version] = stepped(rl={"version": version, "reference": "device", "on_policy_ratio": on_policy})
        named = [phase.phase for phase in report.phases]
        assert named == ["refit", "generation", *["logprob"] * (not on_policy), *["reference"] * (version != "0.18.0"),
                         "training"]
        assert owned(report, "training", "reference policy") == WHOLE
        for phase in report.phases:
            assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    within, before = ({phase.phase: phase for phase in found[version].phases} for version in ("0.18.0", "0.19.1"))
    seconds = before["training"].seconds + before["reference"].seconds
    assert within["training"].seconds == pytest.approx(seconds, rel=.05)
    assert within["training"].device_bytes == pytest.approx(before["training"].device_bytes, rel=.01)  # counted once
    assert owned(found["0.24.0"], "training", "policy") == owned(found["0.27.2"], "training", "policy")


def test_older_releases_send_a_server_one_parameter_after_the_other() -> None:
    report = stepped(generation={"colocated": False}, rl={"version": "0.24.0"})
    sent = [row for row in report.ranks[0].traffic if row.collective == "broadcast" and row.phase == "refit"]
    assert sum(row.payload_bytes for row in sent) == WHOLE
    assert sum(row.calls for row in sent) > 20
    assert owned(report, "refit", "refit") < owned(stepped(generation={"colocated": False}), "refit", "refit")


@pytest.mark.parametrize(("told", "changed"), [
    ("sleep_level: 2: expected 0", {"generation": {"sleep_level": 2}, "rl": {"version": "0.18.0",
                                                                             "on_policy_ratio": True}}),
    ("sleep_level: 2: expected 1, or 0", {"generation": {"sleep_level": 2}, "rl": {"version": "0.24.0"}}),
    ("the policy makes no pass of its own", {"rl": {"version": "0.19.1"}}),
    ("sequences are older than an optimizer step", {"rl": {"version": "0.18.0", "on_policy_ratio": True, "epochs": 2}}),
    ("fsdp2 of TRL 0.19.1", {"framework": "fsdp2", "rl": {"version": "0.19.1", "on_policy_ratio": True}}),
    ("a reference model of its own under fsdp2", {"framework": "fsdp2", "rl": {"version": "0.24.0",
                                                                               "reference": "device"}}),
    ("a reference model within microbatches", {"framework": "fsdp1", "rl": {
        "version": "0.18.0", "reference": "device", "on_policy_ratio": True}}),
    ("reference: host", {"rl": {"reference": "host"}}),
    ("nothing to synchronize", {"rl": {"sync_reference": True}}),
    ("no standalone `ref_model`", {"training": LORA, "framework": "ddp", "mesh": {"dp_replicate": 4},
                                   "rl": {"sync_reference": True, "reference": "device"}}),
    ("sequences are older than an optimizer step", {"rl": {"on_policy_ratio": True, "epochs": 2}}),
    ("the policy makes no pass of its own", {"generation": {"engine": "transformers"}}),
    ("sleep_level: 1: expected 2, or 0", {"generation": {"sleep_level": 1}}),
    ("must divide world size (4) evenly", {"generation": {"tp": 3}}),
    ("logprob_batch_size: passes have the 4 sequences", {"rl": {"logprob_batch_size": 2}}),
    ("GRPO requires at least 2 generations", {"rl": {"generations": 1, "prompts": 64}}),
    ("must be divisible by the global batch size (16", {"rl": {"prompts": 1}}),
    ("neither divides the other", {"training": {"global_batch_size": 96}}),
    ("GRPO of TRL with another loss", {"training": {"loss": "cut"}}),
    ("grpo of TRL under automodel", {"framework": "automodel"}),
    ("sglang beside TRL", {"generation": {"engine": "sglang"}}),
    ("tp: changes nothing with engine: transformers", {"generation": {"engine": "transformers", "tp": 2},
                                                       "rl": {"on_policy_ratio": True}}),
    ("critic: changes nothing with trainer: trl", {"rl": {"critic": {}}}),
    ("changes nothing but under zero3", {"generation": {"engine": "transformers"},
                                         "rl": {"on_policy_ratio": True, "gather_for_generation": False}}),
    ("reference_params: changes nothing", {"rl": {"reference_params": "bf16"}}),
    ("expected the 256 tokens of a prompt and its answer", {"generation": {"max_model_len": 128}}),
    ("scored_tokens: prompt_tokens and seq_len say them", {"training": {"scored_tokens": 10}}),
    ("cp: GRPOTrainer does not support", {"mesh": {"dp_shard": 2, "cp": 2}, "framework": "fsdp2"})])
def test_what_does_not_fit_is_refused(told: str, changed: dict[str, Any]) -> None:
    for report in (simulate(asked(**changed)), check(asked(**changed))):
        assert any(told in str(problem) for problem in report.problems), report.problems


def test_keys_of_trl_are_none_of_another_trainer() -> None:
    report = simulate(asked(framework="fsdp2", rl={"trainer": "nemo_rl", "sync_reference": True}))
    assert any("sync_reference: changes nothing with trainer: nemo_rl" in str(one) for one in report.problems)


@pytest.mark.parametrize(("told", "training"), [
    ("scored_tokens: changes nothing but with loss", {"scored_tokens": 8}),
    ("scored_tokens: expected fewer than the 256 tokens", {"scored_tokens": 256, "loss": "fused_lm_head"})])
def test_tokens_that_are_scored_are_those_of_trls_head(told: str, training: dict[str, Any]) -> None:
    report = simulate(asked(workload="train", training=training, rl={}, generation={}))
    assert any(told in str(problem) for problem in report.problems), report.problems
