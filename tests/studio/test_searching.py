"""A search as a stream of lines, which ends with its answer or where the page stops listening."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from simcore.errors import InputError
from simcore.inputs.loading import changed
from simcore.simulate import simulate
from simcore.studio.question import Question, space_of_question
from simcore.studio.searching import Searching
from simcore.studio.server import MOST_SEARCHES
from studio_jobs import JOB, NoLanes

pytestmark = pytest.mark.slow


def lines(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post("/api/search", json={"values": JOB, **fields})
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def test_what_fits_comes_first_and_the_answer_last(client: TestClient) -> None:
    found = lines(client, free={"training.micro_batch_size": [1, 2], "training.recompute": []})
    assert [line for line in found if "fitting" in line]
    assert found[-1]["over"]
    assert found[-1]["counts"]["candidates"] == 4
    assert found[-1]["layouts"][0]["keys"]["training.micro_batch_size"] in (1, 2)
    bounds = {json.dumps(line["fitting"]["keys"]): line["fitting"] for line in found if "fitting" in line}
    for layout in found[-1]["layouts"]:
        bound = bounds[json.dumps(layout["keys"])]
        assert bound["peak_bytes"] == layout["peak_bytes"]
        assert bound["tokens_per_s_per_gpu_at_most"] >= 0.999 * layout["tokens_per_s_per_gpu"]


def test_what_does_not_fit_is_counted_and_the_nearest_is_told(client: TestClient) -> None:
    job = {**JOB, "limits": {"usable_memory": "10 GiB"}}
    found = lines(client, values=job, gpus=[1, 2], free={"mesh": [], "training.recompute": []})
    last = found[-1]
    assert last["counts"]["ranked"] == 0
    assert sum(last["missed"].values()) == last["counts"]["candidates"]
    assert all(last["counts"][what] == number for what, number in last["missed"].items())
    report = simulate(changed(Question.of({"values": job}).scenario(), last["nearest"]["keys"]), timed=False)
    assert (report.highest_bytes, report.headroom_bytes) == (
        last["nearest"]["peak_bytes"], last["nearest"]["usable_bytes"] - last["nearest"]["peak_bytes"])
    assert any(line.get("nearest") for line in found[:-1])


@pytest.mark.parametrize(("fields", "where"), [
    ({"gpus": [0]}, "gpus"), ({"gpus": "8"}, "gpus"), ({"free": []}, "free"), ({"free": {"mesh": 1}}, "free"),
    ({"frameworks": [1]}, "frameworks")])
def test_a_wrong_space_is_refused(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as error:
        space_of_question(Question.of({"values": JOB, **fields}))
    assert [problem.where for problem in error.value.problems] == [where]


@pytest.mark.parametrize("fields", [{"objectives": ["luck"]}, {"free": []}, {"free": {"mesh.luck": [1]}}])
def test_a_search_that_cannot_begin_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    answer = client.post("/api/search", json={"values": JOB, **fields})
    assert answer.status_code == 422
    assert next(iter(fields)) in str(answer.json()["problems"][0])


def test_a_search_that_is_stopped_ends_its_process() -> None:
    running = Searching({"values": JOB, "gpus": [8, 16, 32]})
    running.begin()
    assert running.next() is not None
    running.stop()
    assert running.next() is None
    assert running._process is not None
    assert not running._process.is_alive()


def test_a_search_that_was_stopped_before_it_begins_has_no_process() -> None:
    running = Searching({"values": JOB})
    running.stop()
    running.begin()
    assert running._process is None
    assert running.next() is None


def test_a_search_takes_its_place_before_it_begins() -> None:
    lanes = NoLanes()
    places = [lanes.search({}) for _ in range(MOST_SEARCHES + 1)]
    assert [place is None for place in places] == [False] * MOST_SEARCHES + [True]
    assert places[0] is not None
    lanes.end(places[0])
    assert lanes.search({}) is not None
