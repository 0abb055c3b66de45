"""Answers of earlier searches: read again as they were, and refused in one line where they cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from found import found
from simcore.errors import InputError
from simcore.search.answers import read_answers


def test_folders_and_lists_are_read_as_they_were(tmp_path: Path) -> None:
    one, two = found(5), found(6, text=" two")
    for name, result in (("a", one), ("b", two)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "answer.json").write_text(result.model_dump_json(), encoding="utf-8")
    assert read_answers(tmp_path / "a") == [one]
    assert read_answers(tmp_path) == [one, two]
    (tmp_path / "mine.yaml").touch()
    assert read_answers(tmp_path) == []  # a folder of scenarios, with searches beside them
    (tmp_path / "both.json").write_text(f"[{one.model_dump_json()},{two.model_dump_json()}]", encoding="utf-8")
    assert read_answers(tmp_path / "both.json") == [one, two]


@pytest.mark.parametrize("text", ["[]", "{}", "1", "not json", "[[]]", '{"name": "a"}', '[{"objectives": 1}]'])
def test_other_files_are_no_answers(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    assert read_answers(tmp_path / "x.json") == []
    assert read_answers(tmp_path / "absent.json") == []
    assert read_answers(tmp_path / "scenario.yaml") == []


def test_an_unfinished_search_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(InputError, match="is not finished"):
        read_answers(tmp_path)


def test_an_answer_of_another_version_is_refused(tmp_path: Path) -> None:
    data = json.loads(found(3).model_dump_json())
    del data["ranked"]
    (tmp_path / "answer.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InputError, match="another version"):
        read_answers(tmp_path)
