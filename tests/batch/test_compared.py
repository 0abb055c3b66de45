"""Scenarios and results to compare: files, names inside them, settings, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import small
from simcore.batch.compared import compared, made_alike
from simcore.errors import InputError
from simcore.simulate import simulate

SWEEP = {"training.seq_len": [32, 64]}


def write(folder: Path, name: str, framework: str = "fsdp2", **changed: Any) -> str:
    """A scenario file; its path."""
    document = small.scenario(framework, {"dp_shard": 4}).normalised() | {"name": name} | changed
    (folder / f"{name}.yaml").write_text(json.dumps(document), encoding="utf-8")
    return str(folder / f"{name}.yaml")


def write_results(folder: Path, *names: str) -> str:
    """A file of results; its path."""
    found = [simulate(small.scenario("fsdp2", {"dp_shard": 4})).model_copy(update={"name": name}) for name in names]
    (folder / "results.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in found), encoding="utf-8")
    return str(folder / "results.jsonl")


def refusal(*arguments: Any) -> str:
    with pytest.raises(InputError) as error:
        compared(*arguments)
    assert len(error.value.problems) == 1
    return str(error.value.problems[0])


def test_every_scenario_and_result_of_every_file_is_compared(tmp_path: Path) -> None:
    swept = write(tmp_path, "b", sweep=SWEEP)
    found = compared([write(tmp_path, "a"), swept, write_results(tmp_path, "c", "d")])
    assert [one.name for one in found] == ["a", "b[training.seq_len=32]", "b[training.seq_len=64]", "c", "d"]
    assert [one.result is None for one in found] == [True, True, True, False, False]


def test_the_folder_of_a_run_is_its_results(tmp_path: Path) -> None:
    write_results(tmp_path, "c", "d")
    assert [one.name for one in compared([str(tmp_path)])] == ["c", "d"]


def test_names_choose_and_order(tmp_path: Path) -> None:
    results = write_results(tmp_path, "c", "d", "e")
    assert [one.name for one in compared([results], (), ("e", "c"))] == ["e", "c"]


def test_one_file_with_a_setting_is_compared_with_itself(tmp_path: Path) -> None:
    plain, longer = compared([write(tmp_path, "a")], ["training.seq_len=32"])
    assert (plain.name, longer.name) == ("a", "a[training.seq_len=32]")
    assert plain.entry is not None
    assert longer.entry is not None
    assert plain.entry.scenario is not None
    assert longer.entry.scenario is not None
    assert plain.entry.scenario.training.seq_len == 64
    assert (longer.entry.scenario.name, longer.entry.scenario.training.seq_len) == (longer.name, 32)


def test_a_sweep_that_is_set_gives_a_column_a_value(tmp_path: Path) -> None:
    found = compared([write(tmp_path, "a")], ["sweep={training.seq_len: [32, 16]}"])
    assert [one.name for one in found] == ["a", "a[training.seq_len=32]", "a[training.seq_len=16]"]


def test_settings_of_several_files_are_for_all(tmp_path: Path) -> None:
    found = compared([write(tmp_path, "a"), write(tmp_path, "b")], ["training.seq_len=32"])
    assert [one.name for one in found] == ["a", "b"]
    assert {one.entry.scenario.training.seq_len for one in found if one.entry and one.entry.scenario} == {32}


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    a, results = write(tmp_path, "a"), write_results(tmp_path, "c", "d")
    assert "takes two or more scenarios or results, this has 1: name another, or give --set" in refusal([a])
    assert "takes two or more" in refusal([results], (), ("d",))
    assert refusal([a, results], (), ("x",)) == f"--name: 'x' is not in {a}, {results}: expected one of a, c, d"
    assert refusal([results], ["mesh.ep=2"]) == "--set: expected a scenario whose keys to override, got results"
    assert "unknown key" in refusal([a], ["mesh.epp=2"])
    assert "no such file" in refusal([a, str(tmp_path / "none.yaml")])


def test_long_lists_of_names_are_cut(tmp_path: Path) -> None:
    swept = write(tmp_path, "a", sweep={"training.seq_len": list(range(1, 13))})
    assert refusal([swept], (), ("x",)).endswith(" and 4 more")


def test_all_get_the_defaults_of_one(tmp_path: Path) -> None:
    files = [write(tmp_path, name, name) for name in ("megatron", "fsdp2")]
    made, kept = made_alike(compared(files), "megatron")
    assert [one.name for one in made] == ["megatron", "fsdp2"]
    params = [one.entry.scenario.training.precision.params for one in made if one.entry and one.entry.scenario]
    assert params == ["auto", "bf16"]
    assert any((one.place, one.key, one.value, one.wanted) == (1, "training.loss", "hf", "megatron") for one in kept)


def test_a_result_gives_its_defaults_and_takes_none(tmp_path: Path) -> None:
    found = compared([write_results(tmp_path, "c"), write(tmp_path, "automodel", "automodel")])
    assert made_alike(found, "c")[0][0].result is not None
    with pytest.raises(InputError, match="--like: 'c' is a result, whose keys cannot be set: name its scenario file"):
        made_alike(found, "automodel")


@pytest.mark.parametrize(("like", "told"), [("x", "'x': expected one of a, c, c"),
                                            ("c", "'c': 2 of them have this name")])
def test_a_name_that_is_not_one(tmp_path: Path, like: str, told: str) -> None:
    found = compared([write(tmp_path, "a"), write_results(tmp_path, "c", "c")])
    with pytest.raises(InputError, match=f"--like: {told}"):
        made_alike(found, like)


def test_a_reference_that_is_refused_is_a_mistake(tmp_path: Path) -> None:
    files = [write(tmp_path, "a", mesh={"dp_shard": 4, "ep": 3}), write(tmp_path, "b")]
    with pytest.raises(InputError, match="ep"):
        made_alike(compared(files), "a")


def test_workloads_are_not_mixed(tmp_path: Path) -> None:
    train, results = write(tmp_path, "a"), write_results(tmp_path, "c")
    row = json.loads(Path(results).read_text(encoding="utf-8"))
    row["scenario"]["workload"] = "serve"
    Path(results).write_text(f"{json.dumps(row)}\n", encoding="utf-8")
    assert "expected scenarios of one workload, got train (a), serve (c): " in refusal([train, results])
