"""Fewest GPUs of each framework: numbers as they are found, proven by every layout on fewer; then the fastest."""

from __future__ import annotations

import time
from typing import Any

import pytest

from simcore.inputs.loading import changed
from simcore.search.judge import Refused, Sized, judged
from simcore.search.space import candidates
from simcore.simulate import simulate
from simcore.studio.fewest import fewest
from simcore.studio.question import Question, space_of_question
from studio_jobs import JOB

pytestmark = pytest.mark.slow
LARGE = {**JOB, "model": "llama-3.1-70b", "training": {**JOB["training"], "global_batch_size": 32}}


def said(job: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """Lines about the fewest GPUs of a job, with free degrees."""
    lines: list[dict[str, Any]] = []
    fewest(Question.of({"values": job, "free": {"mesh": []}, **fields}), lambda line: lines.append(dict(line)))
    assert lines[-1] == {"over": True}
    return lines


def rows(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if "fewest" in line:
            found.setdefault(line["fewest"]["framework"], []).append(line["fewest"])
    return found


def test_a_number_is_told_at_once_then_proven_and_the_fastest_layout_last() -> None:
    found = rows(said(JOB, gpus=[1, 2], frameworks=["ddp", "fsdp2"]))
    for first, proven, best in found.values():
        assert [one["value"] for one in (first, proven, best)] == [1, 1, 1]
        assert [(one["is_fewest"], one["is_best"]) for one in (first, proven, best)] == [
            (False, False), (True, False), (True, True)]
        assert first["layout"]["num_gpus"] == 1
        assert best["layout"]["tokens_per_s_per_gpu"] >= first["layout"]["tokens_per_s_per_gpu"]


def test_fewer_gpus_that_fit_with_several_options_at_once_are_told() -> None:
    job = {**JOB, "framework": "ddp", "mesh": {}, "limits": {"usable_memory": "14 GiB"}}
    free: dict[str, Any] = {"mesh": [], "training.recompute": ["none"], "options": []}
    row = rows(said(job, gpus=[1, 2], free=free, frameworks=["ddp"]))["ddp"][-1]
    assert (row["value"], row["nearest"]["num_gpus"], row["together"]["gpus"]) == (None, 1, 1)
    keys = row["together"]["layout"]["keys"]
    assert {key for key in keys if not key.startswith("mesh")}
    assert simulate(changed(Question.of({"values": job}).scenario(), keys), timed=False).verdict == "fits"
    assert rows(said(job, gpus=[1, 2], free={"mesh": []}, frameworks=["ddp"]))["ddp"][-1]["together"] is None


def test_fewer_gpus_that_share_a_larger_batch_are_told_of_several_options_too() -> None:
    free: dict[str, Any] = {"mesh": [], "training.recompute": ["none"], "options": []}
    job = {**JOB, "framework": "fsdp1", "limits": {"usable_memory": "7 GiB"}}
    row = rows(said(job, free=free, frameworks=["fsdp1"]))["fsdp1"][-1]
    found = row["together"]
    assert (row["value"], found["gpus"], found["skipped"], found["failed"]) == (None, 8, [5, 6, 7], None)
    assert (found["other"]["gpus"], found["other"]["batch"]) == (6, 12)
    keys = {**found["other"]["layout"]["keys"], "training.global_batch_size": 12}
    shared = changed(Question.of({"values": {**job, "mesh": {}}}).scenario(), keys)
    assert (shared.world_size, simulate(shared, timed=False).verdict) == (6, "fits")
    assert row["unmodelled"] == ()


def test_options_that_are_not_modelled_with_a_framework_are_told_in_its_row() -> None:
    free: dict[str, Any] = {"mesh": [], "training.recompute": ["none"], "options": []}
    job = {**JOB, "framework": "zero3", "limits": {"usable_memory": "5 GiB"}}
    row = rows(said(job, free=free, frameworks=["zero3"]))["zero3"][-1]
    assert (row["value"], row["together"]) == (None, None)
    assert row["unmodelled"] == ("activations outside the device under zero3", "tensors on the host beside AutoTP")


def test_activations_on_the_host_count_where_nothing_surely_fits() -> None:
    training = {**JOB["training"], "method": "qlora", "seq_len": 4096, "global_batch_size": 8, "recompute": "full",
                "lora": {"rank": 32, "alpha": 16, "dtype": "fp32"}, "loss": "cut"}
    job = {**JOB, "model": "llama-3.1-8b", "framework": "ddp", "mesh": {"dp_replicate": 2}, "topology": "rtx-3070",
           "training": training}
    free: dict[str, Any] = {"mesh": [], "training.recompute": [], "options": []}
    row = rows(said(job, gpus=[1, 2], free=free, frameworks=["ddp"]))["ddp"][-1]
    assert row["value"] is None
    assert row["together"] is None
    assert row["nearest"]["keys"]["training.offload.activations"] == "host"
    report = simulate(changed(Question.of({"values": job}).scenario(), row["nearest"]["keys"]), timed=False)
    assert (report.verdict, report.highest_bytes) == (row["nearest"]["verdict"], row["nearest"]["peak_bytes"])


def test_layouts_on_fewer_that_are_not_simulated_yet_are_told() -> None:
    row = rows(said({**LARGE, "framework": "automodel"}, gpus=[8, 32], frameworks=["automodel"]))["automodel"][-1]
    assert row["value"] == 32
    assert row["unserved"]["tp with cp under automodel"] >= 1
    assert row["nearest"]["num_gpus"] == 8
    assert row["nearest"]["peak_bytes"] > row["nearest"]["usable_bytes"]


def test_the_framework_of_the_job_comes_first() -> None:
    lines = said(JOB, gpus=[1], frameworks=["ddp", "zero1", "fsdp2"])
    assert list(rows(lines)) == ["fsdp2", "zero1", "ddp"]
    assert next(line["done"] for line in lines if "trying" in line) == 0


def test_what_the_job_says_of_its_stages_keeps_no_framework_from_an_answer() -> None:
    job = {**JOB, "framework": "automodel", "mesh": {"pp": 2, "dp_shard": 4}}
    job["training"] = {**JOB["training"], "pipeline": {"virtual_stages": 2}}
    row = rows(said(job, frameworks=["fsdp2"]))["fsdp2"][-1]
    assert row["value"] == 1
    assert not row["is_refused"]
    assert row["layout"]["keys"]["training.pipeline"] == {}


def test_a_framework_that_refuses_the_job_says_why_and_not_what_a_last_layout_broke() -> None:
    job = {**JOB, "mesh": {"dp_shard": 2}, "training": {**JOB["training"], "method": "qlora", "global_batch_size": 6}}
    for name in ("megatron", "megatron_fsdp"):
        (row,) = rows(said(job, frameworks=[name], free={"mesh": [], "training.micro_batch_size": []}))[name]
        assert row["is_refused"]
        assert "a base in 4 bits" in row["why"], row["why"]


def test_a_framework_that_needs_options_for_adapters_is_answered_with_them() -> None:
    job = {**JOB, "framework": "ddp", "mesh": {"dp_replicate": 2}, "training": {**JOB["training"], "method": "qlora"}}
    row = rows(said(job, gpus=[2], frameworks=["fsdp1"]))["fsdp1"][-1]
    assert row["value"] == 1
    assert set(row["layout"]["keys"]["framework_options"]) == {"wrap", "bnb_4bit_quant_storage"}
    assert simulate(changed(Question.of({"values": job}).scenario(), row["layout"]["keys"])).verdict == "fits"


def test_a_refusal_of_a_framework_names_the_key_that_it_is_about() -> None:
    job = {**JOB, "framework": "ddp", "mesh": {}, "training": {**JOB["training"], "optimizer": {
        "name": "adagrad"}}}
    (row,) = rows(said(job, gpus=[1], frameworks=["zero3"]))["zero3"]
    assert "training.optimizer.name: not yet: " in row["why"]


def test_a_large_model_is_answered_soon() -> None:
    start = time.monotonic()
    found = rows(said(LARGE, free={"mesh": [], "training.recompute": ["full"]}, frameworks=["zero3", "ddp"]))
    assert found["ddp"][-1]["value"] is None
    assert "rests on a rank" in found["ddp"][-1]["why"]
    assert found["zero3"][-1]["value"] == 32
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("framework", ["automodel", "fsdp1"])
def test_no_layout_on_fewer_gpus_fits(framework: str) -> None:
    """Each of a plain space, asked one by one, without the order or the shortcuts of the search."""
    job = {**JOB, "framework": framework, "limits": {"usable_memory": "12 GiB"}}
    free: dict[str, Any] = {"mesh": [], "training.recompute": ["none", "full"]}
    proven = rows(said(job, free=free, frameworks=[framework]))[framework][-1]
    assert proven["value"] in (2, 4)
    for number in range(1, proven["value"]):
        space = space_of_question(Question.of({"values": job, "free": free, "frameworks": [framework],
                                               "gpus": [number]}))
        answers = judged(space.base, list(candidates(space)))
        assert not [one for one in answers if one and not isinstance(one, Refused) and one.verdict == "fits"]


def test_the_fewest_without_states_on_the_host_stand_beside_the_fewest() -> None:
    """No layout on fewer GPUs than either number fits, each asked one by one; alike where neither needs the host."""
    job = {**JOB, "framework": "megatron", "limits": {"usable_memory": "12 GiB"}}
    free: dict[str, Any] = {"mesh": [], "training.recompute": ["full"], "options": []}
    row = rows(said(job, free=free, frameworks=["megatron"]))["megatron"][-1]
    assert row["value"] < row["on_device"]["value"]
    assert "training.offload.optimizer" in row["layout"]["keys"]
    for number in range(1, row["on_device"]["value"] + 1):
        space = space_of_question(Question.of({"values": job, "free": {**free, "leaner": []}, "gpus": [number]}))
        every = list(candidates(space))
        fit = [one for one, answer in zip(every, judged(space.base, every), strict=True)
               if isinstance(answer, Sized) and answer.verdict == "fits"]
        on_device = [one for one in fit if not any(key.startswith("training.offload") for key in one)]
        assert bool(fit) is (number == row["value"]) or number > row["value"], number
        assert bool(on_device) == (number == row["on_device"]["value"]), number
    assert row["on_device"]["layout"]["keys"] in on_device
    roomy = rows(said({**job, "limits": {}}, free=free, frameworks=["megatron"]))["megatron"][-1]
    assert (roomy["value"], roomy["on_device"]) == (1, None)


@pytest.mark.parametrize(("usable", "fits"), [("10 GiB", True), ("8 GiB", False)])
def test_numbers_that_the_batch_is_no_multiple_of_are_tried_with_one_that_is(usable: str, fits: bool) -> None:
    job = {**JOB, "limits": {"usable_memory": usable}}
    free: dict[str, Any] = {"mesh": [], "training.recompute": ["full"]}
    row = rows(said(job, free=free, frameworks=["fsdp2"]))["fsdp2"][-1]
    assert (row["value"], row["skipped"]) == (8, [5, 6, 7])
    found = (6, 12, None) if fits else (None, None, 14)
    other = row["other"] or {"gpus": None, "batch": None}
    assert (other["gpus"], other["batch"], row["failed"]) == found
    if fits:
        keys = {**other["layout"]["keys"], "training.global_batch_size": 12}
        base = Question.of({"values": job}).scenario()
        job_of_6 = changed(base, keys)
        assert job_of_6.world_size == 6
        assert simulate(job_of_6, timed=False).verdict == "fits"
