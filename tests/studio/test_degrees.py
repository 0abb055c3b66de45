"""Values of each degree: legal ones with their mesh, refused ones with the framework's reason."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.inputs.document import Document
from simcore.inputs.loading import changed
from simcore.simulate import simulate
from simcore.studio.degrees import degrees
from simcore.studio.question import Question
from studio_jobs import JOB


def legal(job: dict[str, Any], axis: str) -> dict[Any, Any]:
    """Mesh by legal value."""
    return {one["value"]: one["mesh"] for one in degrees(Document("mine.yaml", job))["values"][axis] if not one["why"]}


def test_data_parallel_takes_what_another_degree_leaves() -> None:
    assert {value: mesh["dp_shard"] for value, mesh in legal(JOB, "dp_replicate").items()} == {1: 8, 2: 4, 4: 2, 8: 1}


def test_the_number_of_gpus_is_that_of_the_data_parallel_ranks() -> None:
    assert {value: mesh["dp_shard"] for value, mesh in legal(JOB, "gpus").items()} == {2**n: 2**n for n in range(9)}


def test_a_refused_value_has_its_reason() -> None:
    job = {**JOB, "mesh": {"dp_replicate": 2, "dp_shard": 4, "cp": 2}}
    (two,) = [one for one in degrees(Document("mine.yaml", job))["values"]["gpus"] if one["value"] == 2]
    assert two["why"] == "the number of GPUs is no multiple of the degrees' product"
    (experts,) = [one for one in degrees(Document("mine.yaml", JOB))["values"]["ep"] if one["value"] == 2]
    assert experts["why"]


def test_more_gpus_than_the_batch_has_sequences_take_a_larger_one() -> None:
    found = {one["value"]: one for one in degrees(Document("mine.yaml", JOB))["values"]["gpus"]}
    assert found[16]["also"] == {"training.global_batch_size": 16}
    assert "also" not in found[8]
    copied = {**JOB, "framework": "ddp", "mesh": {"dp_replicate": 8}}
    found = {one["value"]: one for one in degrees(Document("mine.yaml", copied))["values"]["gpus"]}
    assert found[16]["also"] == {"training.global_batch_size": 16}


def test_fewer_gpus_than_share_the_experts_let_fewer_share_them() -> None:
    job = {**JOB, "model": "nemotron-3-nano-30b-a3b", "framework": "automodel", "mesh": {"ep": 8, "dp_shard": 8}}
    found = {one["value"]: one for one in degrees(Document("mine.yaml", job))["values"]["gpus"]}
    assert (found[4]["mesh"]["dp_shard"], found[4]["mesh"]["ep"], found[4]["also"]) == (4, 4, {"mesh.ep": 4})
    assert found[1]["also"] == {"mesh.ep": 1}
    assert "also" not in found[8]


def test_a_model_without_experts_keeps_the_other_degrees() -> None:
    job = {**JOB, "mesh": {"dp_replicate": 2, "dp_shard": 4, "ep": 2}}
    assert degrees(Document("mine.yaml", job))["plain"] == {
        "pp": 1, "dp_replicate": 2, "dp_shard": 4, "cp": 1, "tp": 1, "ep": 1, "etp": None}


def test_a_framework_without_sharding_takes_replicas() -> None:
    job = {**JOB, "framework": "ddp", "mesh": {"dp_replicate": 2}}
    assert {value: mesh["dp_replicate"] for value, mesh in legal(job, "gpus").items()} == {
        2**n: 2**n for n in range(7)}


def test_a_refused_job_gets_a_plain_layout() -> None:
    refused = degrees(Document("mine.yaml", {**JOB, "framework": "ddp", "mesh": {"dp_shard": 4, "ep": 4}}))
    assert refused["plain"]["dp_replicate"] == 4
    assert refused["plain"]["dp_shard"] == refused["plain"]["ep"] == 1
    assert degrees(Document("mine.yaml", JOB))["plain"] is None


def test_a_plain_layout_leaves_out_what_the_job_says_of_stages() -> None:
    job = {**JOB, "mesh": {"pp": 2, "dp_shard": 4}, "training": {**JOB["training"], "pipeline": {"virtual_stages": 2}}}
    found = degrees(Document("mine.yaml", job))
    assert found["plain"]["dp_shard"] == 8
    assert found["drops"] == ["training.pipeline"]
    assert degrees(Document("mine.yaml", JOB))["drops"] == []


def test_a_refused_job_gets_the_nearest_layouts_first() -> None:
    job = {**JOB, "model": "llama-3.1-8b", "framework": "automodel", "mesh": {"cp": 2, "tp": 2, "dp_shard": 2}}
    found = degrees(Document("mine.yaml", job))
    made = [found["plain"], *(one["plain"] for one in found["others"])]
    assert [(one["cp"], one["tp"], one["dp_shard"]) for one in made] == [(2, 1, 4), (1, 2, 4), (1, 1, 8)]
    assert degrees(Document("mine.yaml", JOB))["others"] == []


def test_a_number_of_gpus_that_the_batch_rules_out_has_the_next_ones_and_a_larger_batch() -> None:
    """Other GPUs train the same, so they come first; each says what it changes beside the layout, and why."""
    job = {**JOB, "model": "nemotron-3-nano-30b-a3b", "framework": "automodel",
           "mesh": {"cp": 2, "ep": 4, "dp_shard": 3}}
    found = degrees(Document("mine.yaml", job))
    made = [{key: found[key] for key in ("plain", "drops", "also", "fixed")}, *found["others"]]
    assert [{axis: n for axis, n in one["plain"].items() if n not in (1, None)} for one in made] == [
        {"dp_shard": 4, "cp": 2, "ep": 4}, {"dp_shard": 3, "cp": 2}, {"dp_shard": 2, "cp": 2, "ep": 4}]
    assert [one["also"] for one in made] == [{}, {"training.global_batch_size": 9}, {}]
    why = "6 GPUs cannot share a global batch of 8 evenly"
    assert [one["fixed"] for one in made] == [why, "", why]
    for one in made:
        keys = {"mesh": {axis: n for axis, n in one["plain"].items() if n}, **one["also"]}
        base = Question.of({"values": {**job, "mesh": {}}}).scenario()
        assert simulate(changed(base, keys), timed=False).status == "ok"


def test_axes_of_experts_are_idle_where_there_are_none_and_none_is_offered_that_changes_nothing() -> None:
    dense = degrees(Document("mine.yaml", JOB))
    assert (dense["idle"], [one["value"] for one in dense["values"]["etp"]]) == (["ep", "etp"], [None])
    nano = {**JOB, "model": "nemotron-3-nano-30b-a3b", "framework": "megatron", "mesh": {"tp": 2, "dp_shard": 4}}
    found = degrees(Document("mine.yaml", nano))
    assert (found["idle"], [one["value"] for one in found["values"]["etp"]]) == ([], [None, 1])


def test_a_mesh_that_no_job_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"mesh\.tp"):
        degrees(Document("mine.yaml", {**JOB, "mesh": {"tp": 0}}, places={("mesh", "tp"): "mesh.tp"}))


def test_a_job_that_its_framework_has_no_layout_for_is_given_to_others() -> None:
    job = {**JOB, "framework": "automodel", "model": "llama-3.3-nemotron-super-49b",
           "training": {**JOB["training"], "method": "lora", "loss": "masked_fp32",
                        "lora": {"rank": 8, "target_modules": ["*_proj"]}}}
    found = degrees(Question.of({"values": job}).document())
    assert found["plain"] is None
    keys = [one["keys"] for one in found["frameworks"]]
    assert len(keys) == 3
    assert {"fsdp2", "zero3"} <= {one["framework"] for one in keys}
    for one in keys:
        assert one["mesh"] == {"dp_shard": 8}
        assert one["training.loss"] == "auto"
        assert "o_proj" in one["training.lora.target_modules"], "names, which PEFT matches, in place of a pattern"
        assert simulate(changed(Question.of({"values": job}).scenario(), one), timed=False).status == "ok"
    assert all(one["says"].endswith(" of 79.11 GiB") for one in found["frameworks"])


def test_a_job_with_a_legal_layout_is_not_given_away() -> None:
    assert degrees(Document("mine.yaml", JOB))["frameworks"] == []
    job = {**JOB, "model": "llama-9-99b"}
    assert degrees(Document("mine.yaml", job))["frameworks"] == []


def test_a_job_of_another_framework_is_offered_with_what_its_own_takes() -> None:
    training = {**JOB["training"], "method": "lora", "loss": "masked_fp32", "lora": {"target_modules": ["*_proj"]},
                "pipeline": {"virtual_stages": 2}}
    job = {**JOB, "mesh": {"pp": 2, "dp_shard": 4}, "training": training}
    first, *others = degrees(Question.of({"values": job}).document())["frameworks"]
    assert "framework" not in first["keys"], "its own framework comes first"
    assert first["keys"]["training.pipeline"] == {}
    assert "q_proj" in first["keys"]["training.lora.target_modules"]
    assert all(one["keys"]["framework"] for one in others)
