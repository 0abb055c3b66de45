"""From paths to scenarios: one bad file costs only itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simcore.errors import InputError
from simcore.inputs.loading import Entry, load, read

BODY = "model: m\nframework: f\ntopology: t\ntraining: {seq_len: 128, global_batch_size: 8}\n"


def write(path: Path, name: str = "", body: str = BODY) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"name: {name or path.stem}\n{body}", encoding="utf-8")
    return path


def told(entries: list[Entry]) -> list[str]:
    return [str(problem) for entry in entries for problem in entry.problems]


def test_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml")
    (entry,) = read([path])
    assert entry.scenario is not None
    assert (entry.name, entry.where, entry.problems) == ("a", f"{path}:1", ())
    assert not entry.scenario.swept
    assert entry.scenario.folder == tmp_path


def test_a_folder_is_read_in_order_without_answers_and_hidden_files(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "sub/c.yaml", "sub/.hidden.yaml", ".git/d.yaml", "answers/e.yaml", "x.answer.yaml",
                 "sub/deeper/f.yaml"):  # fmt: skip
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a scenario")
    assert [entry.name for entry in read([tmp_path])] == ["a", "b", "c", "f"]
    assert told(read([tmp_path])) == []


def test_globs(tmp_path: Path) -> None:
    for name in ("a1.yaml", "a2.yaml", "b.yaml", "sub/a3.yaml"):
        write(tmp_path / name)
    assert [entry.name for entry in read([f"{tmp_path}/a*.yaml"])] == ["a1", "a2"]
    assert [entry.name for entry in read([f"{tmp_path}/**/a*.yaml"])] == ["a1", "a2", "a3"]
    assert [entry.name for entry in read([f"{tmp_path}/*"])] == ["a1", "a2", "b", "a3"]
    (entry,) = read([f"{tmp_path}/z*.yaml"])
    assert told([entry]) == [f"{tmp_path}/z*.yaml: no file matches"]


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    path = write(tmp_path / "a[1].yaml", "odd")
    assert [entry.name for entry in read([path])] == ["odd"]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml")
    (tmp_path / "link.yaml").symlink_to(path)
    assert [entry.name for entry in read([path, tmp_path, path])] == ["a"]


def test_folder_without_scenarios(tmp_path: Path) -> None:
    (entry,) = read([tmp_path])
    assert entry.scenario is None
    assert "holds no scenario" in told([entry])[0]


def test_one_bad_file_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml")
    write(tmp_path / "b.yaml", body=BODY + "mesh: {tp: 0}\n")
    (tmp_path / "c.yaml").write_bytes(b"name: \xe9\n")
    (tmp_path / "d.yaml").touch()
    os.mkfifo(tmp_path / "e.yaml")
    (tmp_path / "f.yaml").symlink_to(tmp_path / "gone")
    write(tmp_path / "g.yaml")
    entries = read([tmp_path, tmp_path / "missing.yaml"])
    assert [entry.name for entry in entries] == ["a", "b", "c", "d", "e", "f", "g", "missing"]
    assert [entry.name for entry in entries if entry.scenario] == ["a", "g"]
    assert all(bool(entry.problems) != bool(entry.scenario) for entry in entries)
    assert told(entries)[0] == f"{tmp_path / 'b.yaml'}:6: mesh.tp: expected at least 1, got 0"


def test_names_are_unique_in_a_batch(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.yaml", "same"), write(tmp_path / "b.yaml", "same")
    entries = read([tmp_path])
    assert [entry.scenario is not None for entry in entries] == [True, False]
    assert told(entries) == [f"{second}:1: name: 'same' is already the name of the scenario at {first}:1"]


def test_load_raises_all_problems(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", body=BODY + "mesh: {tp: 0}\n")
    write(tmp_path / "b.yaml", body=BODY + "mesh: {cp: 0}\n")
    with pytest.raises(InputError) as refused:
        load(tmp_path)
    assert [problem.message.split(":")[0] for problem in refused.value.problems] == ["mesh.tp", "mesh.cp"]


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml")
    (scenario,) = load(path, ["mesh.dp_shard=4", "training.recompute=[moe, mamba]", "limits={max_fill: 0.9}", "name=b"])
    assert (scenario.name, scenario.mesh.dp_shard, scenario.num_microbatches) == ("b", 4, 2)
    assert scenario.training.recompute == ("moe", "mamba")
    assert scenario.training.seq_len == 128
    assert scenario.where("mesh", "dp_shard") == "--set mesh.dp_shard=4"
    assert scenario.where("training", "seq_len") == f"{path}:5"
    assert load(path, ["training.seq_len=1", "training.seq_len=2"])[0].training.seq_len == 2


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("mesh.dpshard=4", "unknown key 'mesh.dpshard'; did you mean 'dp_shard'?"),
        ("trainig.seq_len=4", "unknown key 'trainig'; did you mean 'training'?"),
        ("mesh.tp=true", "mesh.tp: expected a whole number, got true"),
        ("mesh.tp='8'", "mesh.tp: expected a whole number, got '8'"),
        ("model.overrides.x=1", "cannot set model.overrides.x: model is 'm', not a mapping"),
        ("training.global_batch_size=null", ""),
    ],
)
def test_overrides_that_do_not_fit_the_scenario(tmp_path: Path, override: str, expected: str) -> None:
    entries = read([write(tmp_path / "a.yaml")], [override])
    assert told(entries) == ([f"--set {override}: {expected}"] if expected else [])


@pytest.mark.parametrize("override", ["mesh.tp", "=3", "mesh..tp=3", "mesh.tp=[1", "mesh.tp=!!python/name:os.system"])
def test_overrides_that_cannot_be_read(tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError) as refused:
        read([write(tmp_path / "a.yaml")], [override])
    assert refused.value.problems[0].where == f"--set {override}"


def test_json_scenario(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n\t"name": "j", "model": "m", "framework": "f",\n\t"topology": "t", "training": {"seq_len": 1}}')
    (entry,) = read([path])
    assert entry.scenario is not None
    assert entry.scenario.where("training") == f"{path}:3"


def test_a_name_that_is_no_text_costs_only_its_file(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml")
    (tmp_path / "b\udcff.yaml").write_bytes((tmp_path / "a.yaml").read_bytes())
    good, bad = read([tmp_path])
    assert good.scenario is not None
    assert bad.problems[0].where.endswith("b\\udcff.yaml")
    assert bad.problems[0].message == "expected a file name that is text, got other bytes"


def test_odd_paths_are_problems_and_no_crash() -> None:
    for path in ("a\0b", "x" * 5000, "", "-", "/dev/zero"):
        (entry,) = read([path])
        assert entry.scenario is None
        assert entry.problems


def test_import_is_light() -> None:
    code = ("import sys, simcore.inputs.loading\n"
            "print(sorted({'numpy', 'networkx', 'simpy', 'rich'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
