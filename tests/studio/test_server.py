"""The studio's door: which requests are answered, what a page may load, and questions that are wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from simcore.studio import access
from simcore.studio.access import Access
from simcore.studio.fields import MAX_BODY, most_bytes
from simcore.studio.server import app
from studio_jobs import JOB, Asked, NoLanes

pytestmark = pytest.mark.slow


def test_the_page_loads_nothing_but_its_own_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-security-policy"] == access.POLICY
    assert "'unsafe" not in access.POLICY
    assert "//" not in page.text.replace("<!DOCTYPE html>", "")
    for file in ("style.css", "pages.js", "app.js", "form.js", "panels.js", "state.js", "door.js"):
        answer = client.get(f"/{file}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(("headers", "status"), [
    ({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403),
    ({"host": "[::1"}, 421), ({"origin": "http://[::1"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403), ({"content-type": "text/plain"}, 415),
    ({"content-length": str(most_bytes("scenario") + 1)}, 413)])
def test_requests_of_other_pages_are_refused(client: TestClient, headers: dict[str, str], status: int) -> None:
    asked = {"content-type": "application/json", **headers}
    answer = client.post("/api/scenario", content=b'{"values": {}}', headers=asked)
    assert answer.status_code == status
    assert answer.headers["content-security-policy"] == access.POLICY
    message = answer.json()["problems"][0]["message"]
    assert message.startswith(("the request is ", "the request comes ", "the request has ", "expected "))


def test_elsewhere_a_question_needs_the_token() -> None:
    elsewhere = Access.of("0.0.0.0", "secret")  # noqa: S104
    with TestClient(app(elsewhere, made=NoLanes), base_url="http://studio.example:8765") as there:
        assert there.get("/").status_code == 200
        assert there.post("/api/nothing", json={}).status_code == 401
        assert there.post("/api/nothing", json={}, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert there.post("/api/nothing", json={}, headers={"authorization": "Bearer secret"}).status_code == 404


def test_on_this_machine_no_token_is_needed() -> None:
    assert Access.of("127.0.0.1", "secret").token == ""


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"[" * 100_000, 400)])
def test_a_body_that_is_no_question_is_refused(client: TestClient, body: bytes, status: int) -> None:
    answer = client.post("/api/view", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status


def test_a_body_without_a_length_is_read_to_the_limit_only(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcore.studio.fields._MAX_TEXTS", 1000)
    answer = client.post("/api/view", content=iter([b" " * 600] * 3), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_only_a_measured_run_may_be_large() -> None:
    assert most_bytes("measured") == MAX_BODY
    assert {most_bytes(kind) for kind in ("view", "import", "search", "nothing")} == {8 * 2**20}


@pytest.mark.parametrize("nested", ["[" * 700 + "]" * 700, '{"b": ' * 70 + "1" + "}" * 70])
def test_values_that_nest_deep_are_refused_and_the_next_question_is_answered(client: TestClient, asked: Asked,
                                                                           nested: str) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post("/api/answer", content=f'{{"values": {{"a": {nested}}}}}', headers=headers)
    assert answer.status_code == 400
    assert "at most 64 levels" in answer.json()["problems"][0]["message"]
    assert asked("answer", values=JOB)[0]["status"] == "ok"


def test_a_question_of_very_many_values_is_refused(asked: Asked) -> None:
    (problem,) = asked("answer", 400, values={"a": [0] * 200_000})["problems"]
    assert problem["message"] == "expected at most 100,000 values"


@pytest.mark.parametrize(("fields", "where"), [
    ({"values": {"name": "\ud800"}}, "values.name"), ({"text": "a: \ud800"}, "text"),
    ({"files": {"a.yaml": "\ud800"}}, "files.a.yaml"), ({"values": {"\ud800": 1}}, "values")])
def test_text_that_is_no_unicode_is_refused(client: TestClient, fields: dict[str, Any], where: str) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post("/api/view", content=json.dumps(fields), headers=headers)
    assert answer.status_code == 400
    assert answer.json()["problems"] == [
        {"where": where, "message": r"expected Unicode text, got half of a surrogate pair (\ud800)", "rule": ""}]


@pytest.mark.parametrize(("kind", "fields", "where"), [
    ("explain", {"rank": 99999}, "rank"), ("legal", {"gpus": 8}, "gpus"), ("search", {"fre": {}}, "fre")])
def test_a_field_that_a_question_does_not_have_is_refused(asked: Asked, kind: str, fields: dict[str, Any],
                                                         where: str) -> None:
    (problem,) = asked(kind, 400, values=JOB, **fields)["problems"]
    assert problem["where"] == where
    assert "has no such field" in problem["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_refused(client: TestClient, number: str) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post("/api/legal", content=f'{{"values": {{"mesh": {{"tp": {number}}}}}}}', headers=headers)
    assert answer.status_code == 400
    assert number in answer.json()["problems"][0]["message"]


@pytest.mark.parametrize(("kind", "fields"), [
    ("explain", {"what": {"a": 1}}), ("explain", {"what": "pea"}), ("answer", {"advise": "no"}),
    ("pictures", {"opened": "memory"}), ("pictures", {"opened": ["memori"]}), ("options", {"framework": 3}),
    ("view", {"marks": [{"words": "a", "num_bytes": "nan"}]}), ("view", {"marks": [{}] * 5})])
def test_a_field_of_another_value_is_refused(asked: Asked, kind: str, fields: dict[str, Any]) -> None:
    (problem,) = asked(kind, 422, values=JOB, **fields)["problems"]
    assert problem["where"] == next(iter(fields))


def test_an_unknown_question_is_none(asked: Asked) -> None:
    asked("nothing", 404)


@pytest.mark.parametrize("fields", [
    {"name": "../mine.yaml", "text": "a: 1"}, {"name": 3}, {"text": 3}, {"values": []}, {"files": {"a/b": ""}},
    {"files": {"../b": ""}}, {"files": {".b": ""}}, {"files": {"b": 3}}, {"files": {"b": "x" * 300_000}},
    {"files": {str(n): "" for n in range(9)}}])
def test_fields_of_another_kind_are_refused(asked: Asked, fields: dict[str, Any]) -> None:
    assert asked("scenario", 422, **fields)["problems"][0]["message"].startswith("expected")


def test_problems_name_the_key_of_the_form(asked: Asked, job: dict[str, Any]) -> None:
    answer = asked("view", values={**job, "training": {**job["training"], "global_batch_size": 9}})
    assert answer["status"] == "error"
    assert [row["where"] for row in answer["problems"]] == ["training.global_batch_size"]


def test_files_of_this_machine_are_not_read(asked: Asked, job: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
                                            ) -> None:
    file = tmp_path_factory.mktemp("private") / "config.json"
    file.write_text('{"model_type": "llama", "secret": true}', encoding="utf-8")
    (problem,) = asked("view", values={**job, "model": str(file)})["problems"]
    assert "is not among the files that were given" in problem["message"]
    machine = file.with_name("mine.yaml")
    machine.write_text("secret: 1", encoding="utf-8")
    (problem,) = asked("view", values={**job, "topology": str(machine)})["problems"]
    assert "is not among the files that were given" in problem["message"]


def test_a_dropped_config_is_the_model(asked: Asked, job: dict[str, Any]) -> None:
    config = ('{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, '
              '"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, "rms_norm_eps": 1e-5, '
              '"max_position_embeddings": 2048, "tie_word_embeddings": false, "architectures": ["LlamaForCausalLM"]}')
    answer = asked("view", values={**job, "model": "config.json"}, files={"config.json": config})
    assert answer["problems"] == []
    assert answer["verdict"] == "fits"


def test_hostile_names_stay_text(asked: Asked, job: dict[str, Any]) -> None:
    name = "<img src=x onerror=alert(1)>"
    answer = asked("view", values={**job, "name": name, "model": name})
    assert "<img" not in str(answer["parts"])
    assert "&lt;img" in answer["parts"]["problems"]


def test_the_first_parts_have_what_a_user_looks_for(asked: Asked, job: dict[str, Any]) -> None:
    answer = asked("view", values=job)
    assert "Fits" in answer["parts"]["verdict"]
    assert 'class="band"' in answer["parts"]["bars"] or answer["numbers"]["band_bytes"]
    assert "usable" in answer["parts"]["bars"]
    assert answer["numbers"]["num_ranks"] == 8


def test_pictures_come_by_their_own_question(asked: Asked, job: dict[str, Any]) -> None:
    (memory,) = asked("memory", values=job)["parts"].values()
    assert memory.startswith("<figure")
    assert set(asked("pictures", values=job)["parts"]) == {"streams"}
    parts = asked("pictures", values=job, opened=["memory", "placement"])["parts"]
    assert set(parts) == {"memory", "streams", "placement"}
    assert all(text.startswith("<") for text in parts.values())
    assert len(parts["memory"]) > 2 * len(memory)


def test_the_scenario_of_a_form_is_a_file(asked: Asked) -> None:
    assert "seq_len: 2048" in asked("scenario", values=JOB)["text"]
