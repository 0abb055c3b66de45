"""Rows of measured runs: what is refused, where, and that it costs only the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import InputError
from simcore.inputs.shipped import data_folder
from simcore.validation.runs import QUANTITIES, Measured, read_measured

SCENARIO = {"model": "nemotron-3-tiny", "framework": "megatron", "topology": "dgx-h100", "mesh": {"dp_shard": 2},
            "training": {"seq_len": 64}}


def row(name: str = "a", **changed: Any) -> dict[str, Any]:
    """A whole row; a value of None takes the key away."""
    made = {"id": name, "group": "g", "source": "somewhere", "scenario": SCENARIO,
            "readings": [{"of": "allocated_peak", "rank": 0, "bytes": 5}], "verdict": "fits", **changed}
    return {key: value for key, value in made.items() if value is not None}


def file_of(folder: Path, *rows: dict[str, Any] | str) -> str:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows), encoding="utf-8")
    return str(path)


def problem_of(folder: Path, wrong: dict[str, Any] | str, *overrides: str) -> str:
    """Message about a wrong row in the second line; the rows around it are read."""
    path = file_of(folder, row("before"), wrong, row("after"))
    found, problems = read_measured([path], overrides)
    assert [one.row.id for one in found] == ["before", "after"]
    assert len(problems) == 1
    assert problems[0].where == f"{path}:2"
    return problems[0].message


@pytest.mark.parametrize(("changed", "told"), [
    ({"source": None}, "row bad: source: expected text, the key is missing"),
    ({"id": None}, "row without an id: id: expected text, the key is missing"),
    ({"scenario": None}, "row bad: expected either scenario or not_modelled"),
    ({"not_modelled": "why"}, "row bad: expected either scenario or not_modelled"),
    ({"as_published": SCENARIO}, "row bad: expected as_published only without scenario"),
    ({"readings": None, "verdict": None}, "row bad: expected readings, a verdict or step_s"),
    ({"readings": [{"of": "allocated_peak", "bytes": 5}]}, "row bad: readings.0.rank: expected"),
    ({"readings": [{"of": "allocated_peak", "rank": 0, "bytes": 0}]}, "readings.0.bytes: expected at least 1, got 0"),
    ({"readings": [{"of": "allocated", "rank": 0, "bytes": 5}]}, "readings.0.of: expected 'allocated_peak'"),
    ({"step": 3}, "row bad: unknown key 'step'; did you mean 'step_s'?"),
    ({"step_s": 0}, "row bad: step_s: expected more than 0.0, got 0"),
    ({"kind": "fast"}, "row bad: kind: expected 'tuned', 'untuned', 'rl', got 'fast'"),
    ({"source": None, "group": None}, "group: expected text, the key is missing; source: expected text"),
    ({"scenario": {**SCENARIO, "colour": 1}}, "row bad: unknown key 'colour'"),
    ({"scenario": {**SCENARIO, "sweep": {"mesh.ep": [1]}}}, "row bad: no sweep is expected here"),
    ({"scenario": {**SCENARIO, "training": {}}}, "row bad: training.seq_len: expected a whole number, the key is"),
])
def test_a_wrong_row_costs_only_itself(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    assert told in problem_of(tmp_path, row(**{"name": "bad", **changed} if "id" not in changed else changed))


@pytest.mark.parametrize("text", ["{", "[1]", "7", "[" * 100_000])
def test_a_line_that_is_no_object_costs_only_itself(tmp_path: Path, text: str) -> None:
    assert "expected a JSON object on one line" in problem_of(tmp_path, text)


def test_an_id_is_there_once(tmp_path: Path) -> None:
    assert problem_of(tmp_path, row("before")) == "row before: another row has this id already"


def test_a_row_becomes_a_scenario_of_its_name(tmp_path: Path) -> None:
    found, problems = read_measured([file_of(tmp_path, "", row("a"), row("b", scenario=None, not_modelled="why"))])
    assert problems == []
    assert found[0].entry is not None
    assert found[0].entry.scenario is not None
    assert (found[0].entry.name, found[0].entry.where) == ("a", f"{tmp_path / 'rows.jsonl'}:2")
    assert found[0].entry.scenario.training.seq_len == 64
    assert (found[1].entry, found[1].row.not_modelled) == (None, "why")


def test_a_time_is_enough(tmp_path: Path) -> None:
    (found,), problems = read_measured([file_of(tmp_path, row("a", readings=None, verdict=None, step_s=0.5))])
    assert problems == []
    assert (found.row.step_s, found.row.kind, found.row.read_memory) == (0.5, "untuned", False)


def test_a_run_that_is_set_aside_needs_no_reading(tmp_path: Path) -> None:
    lacking = {"scenario": None, "readings": None, "verdict": None, "not_modelled": "a copy"}
    (found,), problems = read_measured([file_of(tmp_path, row("a", **lacking))])
    assert problems == []
    assert (found.row.read_memory, found.row.step_s, found.row.not_modelled) == (False, None, "a copy")


def test_a_configuration_that_ran_otherwise_is_ready_to_be_simulated(tmp_path: Path) -> None:
    asked = {"scenario": None, "not_modelled": "ran otherwise", "as_published": SCENARIO}
    (found,), problems = read_measured([file_of(tmp_path, row("a", **asked))])
    assert problems == []
    assert (found.entry, found.published and found.published.name) == (None, "a")


def test_a_key_may_be_set_in_every_scenario(tmp_path: Path) -> None:
    found, problems = read_measured([file_of(tmp_path, row("a"))], ["training.seq_len=128"])
    assert problems == []
    assert seq_len(found[0]) == 128


def seq_len(measured: Measured) -> int:
    assert measured.entry is not None
    assert measured.entry.scenario is not None
    return measured.entry.scenario.training.seq_len


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row(name)), encoding="utf-8")
    (tmp_path / "c.txt").write_text("no rows", encoding="utf-8")
    assert [measured_row.row.id for measured_row in read_measured([str(tmp_path)])[0]] == ["a", "b"]


@pytest.mark.parametrize(("name", "told"), [
    ("none.jsonl", "no such file"), ("empty", "holds no measured rows"), ("binary.jsonl", "expected UTF-8")])
def test_a_path_without_rows_is_a_wrong_input(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=told):
        read_measured([str(tmp_path / name)])


# ---- the rows that come along ---------------------------------------------------------------------------------------
def test_all_rows_that_come_along_are_whole() -> None:
    found, problems = read_measured()
    assert problems == []
    assert {reading.of for one in found for reading in one.row.readings} == set(QUANTITIES)
    assert {one.row.verdict for one in found if one.row.read_memory} == {"fits", "oom"}
    assert {one.row.kind for one in found if one.row.step_s} == {"tuned", "untuned", "rl"}


def test_a_file_holds_one_group_under_its_name() -> None:
    for path in data_folder("measured").glob("*.jsonl"):
        assert {measured_row.row.group for measured_row in read_measured([str(path)])[0]} == {path.stem}


def test_a_reading_is_on_a_rank_that_there_is() -> None:
    for measured_row in read_measured()[0]:
        if measured_row.entry and measured_row.entry.scenario:
            ranks = [reading.rank for reading in measured_row.row.readings if isinstance(reading.rank, int)]
            assert max(ranks, default=0) < measured_row.entry.scenario.world_size, measured_row.row.id


def test_a_published_reading_is_restated_in_bytes() -> None:
    """63.639 GB as printed (1e9), 59.268 GiB in the collection; 16 GPUs, every expert twice."""
    measured, _ = read_measured([str(data_folder("measured") / "mbridge-skill.jsonl")])
    rows = {measured_row.row.id: measured_row for measured_row in measured}
    found = rows["mbskill-nemotron3nano-h100-16g-moe_layernorm"]
    assert [(r.of, r.rank, round(r.bytes / 1e9, 2)) for r in found.row.readings] == [("allocated_peak", 0, 63.64)]
    assert found.entry is not None
    assert found.entry.scenario is not None
    assert (found.entry.scenario.world_size, found.entry.scenario.mesh.ep) == (16, 8)
    assert found.entry.scenario.training.recompute == ("moe", "layernorm")
