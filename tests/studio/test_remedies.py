"""Questions that take many simulations: changes, limits, jobs side by side, measured runs."""

from __future__ import annotations

import base64
import json
import re

import pytest

from studio_jobs import JOB, Asked

pytestmark = pytest.mark.slow

FULL = {**JOB, "topology": "rtx-4090", "mesh": {"dp_shard": 2},
        "training": {"seq_len": 4096, "micro_batch_size": 8, "method": "full"}}


def test_a_change_that_makes_it_fit_is_applied_as_it_stands(asked: Asked) -> None:
    advice = asked("advice", values=FULL)["parts"]["advice"]
    changes = json.loads(re.findall(r'data-changes="([^"]+)"', advice)[0].replace("&quot;", '"'))
    assert changes
    assert asked("advice", values=JOB)["parts"]["advice"] != advice


def test_a_limit_has_the_keys_that_set_it(asked: Asked) -> None:
    found = asked("limit", values=FULL, quantity="micro_batch")
    assert found["words"] == "largest micro batch"
    assert found["keys"] == {"training.micro_batch_size": found["value"]}
    assert asked("limit", 422, values=FULL, quantity="luck")["problems"]


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


@pytest.mark.parametrize(("content", "words"), [("%", "base64"), ("aGVsbG8=", "expected a pickled")])
def test_what_is_no_run_is_refused(asked: Asked, content: str, words: str) -> None:
    (problem,) = asked("measured", 422, values=JOB, name="x.txt", content=content)["problems"]
    assert words in problem["message"]


def test_marks_of_another_kind_are_refused(asked: Asked) -> None:
    assert asked("view", 422, values=JOB, marks=[{"words": 1}])["problems"][0]["where"] == "marks"
