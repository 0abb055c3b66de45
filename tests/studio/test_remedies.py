"""Questions that take many simulations: changes, limits, jobs side by side, measured runs."""

from __future__ import annotations

import base64
import html
import json
import re

import pytest

from simcore.batch.advice import advise
from simcore.inputs.loading import changed
from simcore.simulate import simulate
from simcore.studio.faster import on_fewer, on_whole_hosts, plainer
from simcore.studio.question import Question
from studio_jobs import JOB, Asked

pytestmark = pytest.mark.slow

FULL = {**JOB, "topology": "rtx-4090", "mesh": {"dp_shard": 2},
        "training": {"seq_len": 4096, "micro_batch_size": 8, "method": "full"}}


def test_a_change_that_makes_it_fit_is_applied_as_it_stands(asked: Asked) -> None:
    advice = asked("advice", values=FULL)["parts"]["advice"]
    changes = json.loads(re.findall(r'data-changes="([^"]+)"', advice)[0].replace("&quot;", '"'))
    assert changes
    assert asked("advice", values=JOB)["parts"]["advice"] != advice


def test_a_change_that_is_faster_fits_with_the_same_batch(asked: Asked) -> None:
    job = {**JOB, "training": {**JOB["training"], "global_batch_size": 16, "recompute": "full"}}
    before = asked("view", values=job)["numbers"]
    listed = asked("faster", values=job)["parts"]["advice"]
    first = json.loads(re.findall(r'data-changes="([^"]+)"', listed)[0].replace("&quot;", '"'))
    training = {**job["training"], **{key.removeprefix("training."): value for key, value in first.items()}}
    after = asked("view", values={**job, "training": training})
    assert after["verdict"] == "fits"
    assert after["numbers"]["step_s"] < before["step_s"]
    assert asked("faster", values=FULL)["parts"]["advice"] == ""  # it does not fit


def test_a_plainer_layout_is_among_what_makes_it_fit() -> None:
    training = {"seq_len": 1024, "method": "full", "global_batch_size": 32, "recompute": "full"}
    job = {**JOB, "model": "qwen3-32b", "framework": "automodel", "mesh": {"pp": 4, "dp_shard": 2},
           "framework_options": {"defer_fsdp_grad_sync": False}, "training": training}
    found = plainer(Question.of({"values": job}).scenario())
    assert {"mesh.pp": 1, "mesh.dp_shard": 8} in [one.changes for one in found]
    assert all(one.verdict == "fits" and one.num_gpus == 8 for one in found)
    assert plainer(Question.of({"values": JOB}).scenario()) == ()


def test_fewer_gpus_than_twice_as_many_are_offered_with_the_batch_that_they_share() -> None:
    training = {**JOB["training"], "recompute": "full", "loss": "cut"}
    job = {**JOB, "mesh": {"dp_shard": 2}, "limits": {"usable_memory": "12 GiB"}, "training": training}
    base = Question.of({"values": job}).scenario()
    known = [on_whole_hosts(base, one) for one in advise(base)]
    fewest, same = on_fewer(base, known)
    assert fewest.changes == {"mesh.dp_shard": 3, "training.global_batch_size": 9}
    assert "a global batch of 9, not 8" in fewest.warning
    assert (same.num_gpus, same.warning) == (4, "")
    for one in (fewest, same):
        assert simulate(changed(base, one.changes)).verdict == one.verdict == "fits"
    assert on_fewer(base, ()) == ()


def test_what_fills_a_device_that_is_too_small_is_told_in_words(asked: Asked) -> None:
    parts = asked("view", values=FULL)["parts"]
    assert re.search(r"Most of it: \w+ [0-9.]+ GiB \([a-z]", parts["mostly"])
    assert asked("view", values=JOB)["parts"]["mostly"] == ""


def test_costs_follow_a_price_of_ones_own(asked: Asked) -> None:
    usd = [asked("view", values=JOB, price=price)["numbers"]["usd_per_million_tokens"] for price in (None, 1, 2.5)]
    rate = asked("view", values=JOB)["numbers"]["tokens_per_s_per_gpu"]
    assert usd[1] == pytest.approx(1e6 / 3600 / rate)
    assert usd[2] == pytest.approx(2.5 * usd[1])
    assert usd[0] == pytest.approx(2.95 * usd[1])  # of dgx-h100
    unknown = asked("view", values={**JOB, "topology": "dgx-b300"}, price=1)["numbers"]
    assert unknown["usd_per_million_tokens"] == pytest.approx(1e6 / 3600 / unknown["tokens_per_s_per_gpu"])


def test_a_job_of_copies_that_nothing_makes_fit_is_told_of_frameworks_that_shard(asked: Asked) -> None:
    training = {"seq_len": 4096, "global_batch_size": 2, "method": "qlora", "recompute": "full", "loss": "cut",
                "lora": {"rank": 32, "alpha": 16}}
    job = {**JOB, "model": "ByteDance-Seed/Seed-OSS-36B-Instruct", "topology": "rtx-3090", "framework": "ddp",
           "mesh": {"dp_replicate": 2}, "training": training}
    part = asked("advice", values=job)["parts"]["advice"]
    changes = [json.loads(html.unescape(one)) for one in re.findall(r'data-changes="([^"]*)"', part)]
    (cure,) = [one for one in changes if one.get("framework") == "fsdp1"]
    scenario = changed(Question.of({"values": job}).scenario(), cure)
    assert simulate(scenario, timed=False).verdict == "fits"
    assert (scenario.mesh.dp_shard, scenario.mesh.dp_replicate) == (2, 1)
    fitting = {**job, "topology": "dgx-h100"}
    assert "fsdp1" not in asked("advice", values=fitting)["parts"]["advice"]


def test_a_job_too_large_for_dozens_of_tries_is_offered_more_gpus(asked: Asked) -> None:
    job = {**JOB, "framework": "automodel", "model": "mixtral-8x7b", "mesh": {"pp": 8}, "framework_options": {
        "local_batch_size": 8}, "training": {"seq_len": 2048, "global_batch_size": 64, "micro_batch_size": 1,
        "lengths": "packed", "loss": "masked_fp32", "pipeline": {"schedule": "1f1b", "virtual_stages": 2}}}
    part = asked("advice", values=job)["parts"]["advice"]
    changes = [json.loads(html.unescape(one)) for one in re.findall(r'data-changes="([^"]*)"', part)]
    (cure,) = [one for one in changes if one.get("mesh.dp_shard", 1) > 1]
    assert simulate(changed(Question.of({"values": job}).scenario(), cure), timed=False).verdict == "fits"
    assert "too large to try every change" in part


def test_states_that_a_host_has_no_room_for_are_told_in_the_verdict(asked: Asked) -> None:
    job = {**JOB, "model": "qwen2.5-7b", "framework": "zero3", "topology": "rtx-4090", "mesh": {"dp_shard": 1},
           "training": {"seq_len": 4096, "global_batch_size": 64, "method": "full", "recompute": "full",
                        "offload": {"params": "host", "gradients": "host", "optimizer": "host"}}}
    view = asked("view", values=job)
    assert view["verdict"] == "oom"
    assert "But a host of 1 rank needs 149.11 GiB of its 119.21 GiB in a step" in view["parts"]["verdict"]


@pytest.mark.parametrize("price", [-1, "2", True, 1e9])
def test_what_is_no_price_is_refused(asked: Asked, price: object) -> None:
    assert asked("view", 422, values=JOB, price=price)["problems"][0]["where"] == "price"


def test_a_measured_curve_is_drawn_over_memory(asked: Asked) -> None:
    (plain,) = asked("memory", values=JOB)["parts"].values()
    (drawn,) = asked("memory", values=JOB, curve=[0, 2**36, 2**35])["parts"].values()
    assert "measured-curve" not in plain
    assert "measured, at most 64.00 GiB" in drawn
    assert asked("memory", 422, values=JOB, curve=[-1])["problems"][0]["where"] == "curve"


def test_a_limit_has_the_keys_that_set_it(asked: Asked) -> None:
    found = asked("limit", values=FULL, quantity="micro_batch")
    assert found["words"] == "largest micro batch"
    assert found["keys"] == {"training.micro_batch_size": found["value"]}
    assert asked("limit", 422, values=FULL, quantity="luck")["problems"]


def test_the_longest_row_of_packed_samples_is_told_in_whole_samples(asked: Asked) -> None:
    packed = {"seq_len": 8192, "packed_length": 4096, "lengths": "packed", "method": "full"}
    found = asked("limit", values={**JOB, "training": packed}, quantity="sequence")
    now, more = found["rows"]
    for one in (now, more):
        assert one["keys"] == {"training.seq_len": one["samples"] * one["length"],
                               "training.packed_length": one["length"]}
        assert one["samples"] * one["length"] <= found["value"]
    assert (now["samples"], more["length"]) == (2, 4096)
    assert (now["length"] + 64) * 2 > found["value"]
    assert (more["samples"] + 1) * 4096 > found["value"]
    assert asked("limit", values=JOB, quantity="sequence")["rows"] == []


def test_jobs_stand_side_by_side(asked: Asked) -> None:
    versus = asked("compare", jobs=[JOB, {**JOB, "framework": "zero3"}])["parts"]["versus"]
    assert "zero3" in versus
    problems = asked("compare", 422, jobs=[JOB, {**JOB, "model": "nothing"}])["problems"]
    assert problems[0]["message"]


@pytest.mark.parametrize("jobs", [None, [], [JOB], [JOB] * 6, [JOB, 3]])
def test_other_numbers_of_jobs_are_refused(asked: Asked, jobs: object) -> None:
    assert asked("compare", 422, jobs=jobs)["problems"][0]["where"] == "jobs"


def test_a_failure_stands_beside_the_job_and_on_its_bars(asked: Asked) -> None:
    text = (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of "
            b"79.11 GiB of which 512.00 MiB is free. Process 1 has 78.60 GiB memory in use. Of the allocated memory "
            b"74.10 GiB is allocated by PyTorch, and 2.40 GiB is reserved by PyTorch but unallocated.\n")
    answer = asked("measured", values=JOB, name="error.txt", content=base64.b64encode(text).decode())
    assert "error.txt" in answer["parts"]["measured"]
    assert [mark["words"] for mark in answer["marks"]] == ["allocated, and asked for", "needed, at least"]
    marks = [{"words": "peak <b>", "num_bytes": 2**36}]
    assert "measured: peak &lt;b&gt; 64.00 GiB" in asked("view", values=JOB, marks=marks)["parts"]["bars"]


def test_a_log_of_another_run_says_so_above_its_numbers(asked: Asked) -> None:
    lines = (b"  Instantaneous batch size per device = 4\n  Gradient Accumulation steps = 2\n"
             b"  Total train batch size (w. parallel, distributed & accumulation) = 16\n"
             b"  Number of trainable parameters = 8,030,261,248\n"
             b"{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n{'train_runtime': 60.0, 'train_steps_per_second': "
             b"0.5, 'train_samples_per_second': 8.0}\n")
    part = asked("measured", values=JOB, name="run.log", content=base64.b64encode(lines).decode())["parts"]["measured"]
    caveat = re.findall('<p class="caveat">(.*?)</p>', part)[0]
    for words in ("micro batch 4, the job has 1", "global batch 16, the job has 8",
                  "data-parallel ranks 2, the job has 8",
                  "trainable parameters 8,030,261,248, the job has 1,235,814,400"):
        assert caveat.count(words) == 1, (words, caveat)
    assert part.index("caveat") < part.index("<table")


@pytest.mark.parametrize(("content", "words"), [("%", "base64"), ("aGVsbG8=", "expected a pickled")])
def test_what_is_no_run_is_refused(asked: Asked, content: str, words: str) -> None:
    (problem,) = asked("measured", 422, values=JOB, name="x.txt", content=content)["problems"]
    assert words in problem["message"]


def test_marks_of_another_kind_are_refused(asked: Asked) -> None:
    assert asked("view", 422, values=JOB, marks=[{"words": 1}])["problems"][0]["where"] == "marks"
