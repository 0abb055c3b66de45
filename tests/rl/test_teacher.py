"""The workload `distillation`: a teacher beside the policy, from a file to a report."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.phases import PhaseReport
from simcore.results.report import Report
from simcore.simulate import check, simulate

K: Final = 64
BASE: Final[dict[str, Any]] = {
    "name": "d", "workload": "distillation", "model": "nemotron-3-tiny", "framework": "megatron",
    "topology": "dgx-h100", "mesh": {"dp_shard": 8}, "training": {"seq_len": 256, "global_batch_size": 16},
    "rl": {"prompts": 32, "generations": 1}, "generation": {"max_model_len": 256},
    "teacher": {"model": "nemotron-3-nano-4b", "mesh": {"tp": 2, "dp_shard": 4}, "top_k": K},
}
DTENSOR: Final = {"framework": "automodel", "framework_version": "NeMo RL 7ea279ab", "model": "llama-3.2-1b",
                  "implementation": "hf",
                  "teacher": {"model": "llama-3.2-3b", "implementation": "hf", "mesh": {"dp_shard": 8}}}


def run(**changed: Any) -> Report:
    return simulate(parse_scenario(parse_document(json.dumps(BASE | changed, indent=0), "d.json")), timed=False)


def phases(report: Report) -> dict[str, PhaseReport]:
    assert report.status == "ok", report.problems
    return {phase.phase: phase for phase in report.phases}


@pytest.fixture(scope="module")
def found() -> Report:
    return run()


def test_a_teacher_is_on_the_device_for_its_passes_alone(found: Report) -> None:
    phase = phases(found)
    assert list(phase) == ["refit", "generation", "teacher", "training"]
    there = {name: one.by_owner["teacher"] for name, one in phase.items()}
    assert there["refit"] == there["generation"] == there["training"] > 0
    away = {name: one.host_by_owner.get("teacher", 0) for name, one in phase.items()}
    assert away["refit"] == away["generation"] > 2 * 2**30
    alone = simulate(parse_scenario(parse_document(json.dumps(
        {"name": "t", "model": "nemotron-3-nano-4b", "framework": "megatron", "topology": "dgx-h100",
         "mesh": BASE["teacher"]["mesh"], "training": {"seq_len": 256, "sequence_parallel": False}}), "t.json")),
        timed=False)
    params = max(sum(part.params_bytes for part in rank.at_rest.values()) for rank in alone.ranks)
    assert away["refit"] == pytest.approx(params, rel=1e-3)
    assert there["teacher"] - there["training"] > params  # workspaces and NCCL's buffers stay


def test_logits_of_a_teacher_wait_on_the_device_for_the_training_step(found: Report) -> None:
    """Values in fp32 and places in int64, of the sequences of an optimizer step on a data-parallel rank."""
    assert phases(found)["training"].by_owner["teacher's logits"] == 12 * K * 256 * 16 // 8
    assert "teacher's logits" not in phases(found)["teacher"].by_owner


def test_what_a_teacher_sends_is_of_its_own_degrees(found: Report) -> None:
    rows = {(row.collective, row.axis, row.dtype): row for row in found.ranks[0].traffic if row.phase == "teacher"}
    values, places = rows["all_gather", "tp", "fp32"], rows["all_gather", "tp", "int64"]
    assert (values.group_size, values.calls, values.payload_bytes) == (2, 8, 8 * 2 * 4 * K * 256)
    assert places.payload_bytes == 2 * values.payload_bytes
    assert not any(row.phase in ("logprob", "reference") for row in found.ranks[0].traffic)
    sent = {name: dict(phase.sent_bytes) for name, phase in phases(found).items()}
    assert sent["teacher"]["host"] == 2 * phases(found)["refit"].host_by_owner["teacher"]


def test_megatrons_last_stage_keeps_the_logits_of_all_passes() -> None:
    """Workers of DTensor send those of each pass to the host."""
    few, many = (phases(run(rl={"prompts": prompts, "generations": 1},
                            training={"seq_len": 256, "global_batch_size": 16}))["teacher"].device_bytes
                 for prompts in (16, 64))
    assert many - few == pytest.approx(12 * 12 * K * 256, abs=2**20)  # 16 passes and not 4, fragmentation aside
    few, many = (phases(run(**DTENSOR, rl={"prompts": prompts, "generations": 1}))["teacher"].device_bytes
                 for prompts in (16, 64))
    assert many == few


def test_the_loss_of_a_student_holds_less_than_a_cross_entropy() -> None:
    """Logits 2 (bf16), a cast of 4; backward a gradient of 4 and one of 2, with 131,072 entries a token."""
    for changed in ({}, DTENSOR):
        taught, plain = (phases(run(**{**changed, "training": {"seq_len": 2048, "global_batch_size": 16}, **more}))[
            "training"] for more in ({}, {"workload": "grpo", "teacher": None}))
        assert taught.by_owner["policy"] < plain.by_owner["policy"]


def test_with_engines_apart_the_students_parameters_stay_and_its_states_leave() -> None:
    engine = {"max_model_len": 256, "kv_cache_memory": "64 MiB"}
    teacher = phases(run(generation=engine | {"colocated": False, "engines": 1}))["teacher"]
    shared = phases(run(generation=engine))["teacher"]
    assert teacher.by_owner["policy"] > shared.by_owner["policy"]
    assert teacher.host_by_owner["policy"] > 0
    assert "engine" not in teacher.by_owner


@pytest.mark.parametrize(("changed", "told"), [
    ({"teacher": None}, "missing the block teacher"),
    ({"teacher": {"model": "nemotron-3-tiny", "mesh": {"dp_shard": 4}}}, "expected the 8 ranks of the policy"),
    ({"rl": {"prompts": 32, "generations": 1, "logprob_batch_size": 3}}, "data-parallel ranks of the teacher, 12"),
    ({"rl": BASE["rl"] | {"reference": "host"}}, "not in distillation"),
    ({"rl": BASE["rl"] | {"on_policy_ratio": True}}, "not in distillation"),
    ({"workload": "grpo"}, "changes nothing but in"),
    ({"workload": "dpo", "rl": None, "generation": None}, "changes nothing but in"),
    ({"workload": "train", "rl": None, "generation": None}, "changes nothing but in"),
    ({"workload": "train", "rl": None, "generation": None, "teacher": None,
      "training": {"seq_len": 256, "loss": "top_k"}}, "missing the block teacher"),
    ({"training": {"seq_len": 256, "loss": "te"}}, "expected top_k"),
    ({"training": {"seq_len": 256, "logprob_chunk_size": 32}}, "logits of a teacher in chunks"),
    ({"framework": "fsdp2", "teacher": {"model": "llama-3.2-1b", "mesh": {"dp_shard": 8}}}, "top_k under fsdp2"),
    ({"teacher": {"model": "no-such-model", "mesh": {"dp_shard": 8}}}, "unknown model 'no-such-model'"),
], ids=lambda one: one if isinstance(one, str) else "")
def test_what_a_step_of_distillation_cannot_be_is_refused(changed: dict[str, Any], told: str) -> None:
    scenario = parse_scenario(parse_document(json.dumps(BASE | changed, indent=0), "d.json"))
    for report in (check(scenario), simulate(scenario, timed=False)):
        assert told in " ".join(problem.message for problem in report.problems), report.status


def test_a_problem_of_the_teachers_model_is_at_its_line() -> None:
    text = json.dumps(BASE | {"teacher": {"model": "no-such-model", "mesh": {"dp_shard": 8}}}, indent=0)
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "no-such-model" in row)
    report = simulate(parse_scenario(parse_document(text, "d.json")), timed=False)
    assert report.problems[0].where == f"d.json:{line}"
