"""The rows beside results: whole, in order, never those of other results, and never in the place of something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from fakes import entry, work
from simcore.batch import rows
from simcore.batch.folder import Existing
from simcore.batch.run import Work
from simcore.cli.session import Ran, run_entries
from simcore.errors import InputError
from simcore.inputs.loading import Entry
from simcore.results.frame import Column
from simcore.tables import data_set
from simcore.tables.data_set import DataSet, data_of, digest_of
from simcore.tables.tabulate import table

pyarrow = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: no rows were written")

COLUMNS = (Column("number", "int64", "", "its number"), Column("text", "string", "", "a text"))
ENTRIES = [entry(f"s{i}", ("fits", "oom", "illegal", "crash")[i % 4]) for i in range(12)]


def written(folder: Path, numbers: list[int]) -> None:
    """A data set of rows that come in this order, beside a journal."""
    folder.mkdir(exist_ok=True)
    (folder / "journal").write_text(str(sorted(numbers)))
    made = DataSet(folder / ".under_way", "any", COLUMNS)
    for number in numbers:
        made.add(number, (number, f"row {number}"))
    made.end(folder, "journal", digest_of(folder / "journal"))


def read(folder: Path) -> list[int]:
    return [number for path in data_of(folder) for number in pyarrow.read_table(path).column("number").to_pylist()]


def run(folder: Path, entries: list[object] | None = None, existing: Existing = Existing.REFUSE) -> Ran:
    return run_entries(cast("list[Entry]", entries or ENTRIES), cast("Work", work), 1, folder, existing)


def names(folder: Path) -> list[str]:
    return [name for path in data_of(folder) for name in pyarrow.read_table(path).column("name").to_pylist()]


def test_rows_are_the_same_bytes_in_whatever_order_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_set, "ROWS", 4)
    orders = {"in turn": [*range(10)], "backwards": [*range(9, -1, -1)], "mixed": [5, 9, 0, 1, 7, 2, 3, 8, 6, 4]}
    files = []
    for name, order in orders.items():
        written(tmp_path / name, order)
        assert read(tmp_path / name) == [*range(10)]
        files.append({path.name: path.read_bytes() for path in (tmp_path / name / "data").iterdir()})
    assert files[0].keys() == {"_about.json", "part-00000.parquet", "part-00001.parquet", "part-00002.parquet"}
    assert files[0] == files[1] == files[2]


def test_a_data_set_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    written(tmp_path / "out", [0, 1, 2])
    written(tmp_path / "out", [7])
    assert read(tmp_path / "out") == [7]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data", "journal"]


def test_without_rows_there_are_columns(tmp_path: Path) -> None:
    written(tmp_path / "out", [])
    assert read(tmp_path / "out") == []


def test_rows_are_those_of_the_results(tmp_path: Path) -> None:
    ran = run(tmp_path / "out")
    expected = table([outcome.report for outcome in ran.outcomes]).to_dict()
    (path,) = data_of(tmp_path / "out")
    found = pyarrow.read_table(path).to_pydict()
    assert found == {name: expected[name] for name in found}
    assert {"name", "peak_bytes", "training.seq_len", "training.precision.params"} <= set(found)


def test_appended_results_have_rows_too(tmp_path: Path) -> None:
    run(tmp_path / "out")
    run(tmp_path / "out", [entry("more", "fits")], Existing.APPEND)
    assert names(tmp_path / "out") == [*(one.name for one in ENTRIES), "more"]
    run(tmp_path / "out", [entry("other", "fits")], Existing.OVERWRITE)
    assert names(tmp_path / "out") == ["other"]


@pytest.mark.parametrize("damage", ["gone", "of others", "of another version", "no data set"])
def test_rows_of_other_results_are_refused_and_written_anew(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    run(out)
    about = out / "data/_about.json"
    said = json.loads(about.read_text())
    if damage == "gone":
        for path in (out / "data").iterdir():
            path.unlink()
        (out / "data").rmdir()
    elif damage == "of others":
        about.write_text(json.dumps(said | {"digest": "0" * 64}))
    else:
        about.write_text(json.dumps(said | {"version": 0}) if damage == "of another version" else "[")
    told = {"gone": "no rows to ask", "of others": "rows of other results", "of another version": "another version",
            "no data set": "is no data set"}
    with pytest.raises(InputError, match=told[damage]):
        data_of(out)
    assert len(run(out).outcomes) == 12
    assert len(names(out)) == 12


def test_a_folder_of_something_else_stays_and_costs_the_rows(tmp_path: Path,
                                                              capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "out/data/mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    ran = run(tmp_path / "out")
    assert (len(ran.outcomes), ran.ended) == (12, 0)
    assert mine.read_text() == "mine"
    assert "data: is there, and no data set of rankscope" in capsys.readouterr().err


def test_without_pyarrow_results_stay_and_a_line_says_how_to_get_rows(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(rows, "has_arrow", lambda: False)
    assert len(run(tmp_path / "out").outcomes) == 12
    assert not (tmp_path / "out/data").exists()
    assert "pip install 'rankscope[query]'" in capsys.readouterr().err


def test_rows_that_cannot_be_written_cost_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_set, "write_part", full)
    ran = run(tmp_path / "out")
    assert (len(ran.outcomes), ran.ended) == (12, 2)
    assert "No space left on device" in str(ran.problems[0])
    monkeypatch.undo()
    run(tmp_path / "out")
    assert len(names(tmp_path / "out")) == 12
