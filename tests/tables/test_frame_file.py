"""CSV and Parquet hold the same table; no name becomes a formula."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

import fakes
from simcore.errors import InputError
from simcore.results.frame import Column, Frame
from simcore.tables.frame_file import arrow, write_csv, write_parquet
from simcore.tables.tabulate import table

MIXED = Frame("scenarios", (Column("name", "string", "", "who"), Column("device_bytes", "int64", "B", "much"),
                            Column("mfu", "float64", "", "share"), Column("is_worst", "bool", "", "")),
              (("a, \"b\"", 2**40, 0.1, True), ("é", None, None, None), ("", -5, -1e-9, False)))


def read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_a_csv_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", MIXED)
    assert read(tmp_path / "a.csv") == [["name", "device_bytes", "mfu", "is_worst"],
                                        ['a, "b"', "1099511627776", "0.1", "true"], ["é", "", "", ""],
                                        ["", "-5", "-1e-09", "false"]]
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()


@pytest.mark.parametrize(("name", "written"), [
    ("=cmd|/C calc!A0", "'=cmd|/C calc!A0"), ("+1", "'+1"), ("-1", "'-1"), ("@SUM(A1)", "'@SUM(A1)"),
    (" =1", " '=1"), ("\uff1d1", "'\uff1d1"), ("a;=1", "a;'=1"), ("a=1-2@3+4", "a=1-2@3+4"),
    ("\t=1", "\ufffd=1"), ("a\r\n=1", "a\ufffd\ufffd=1"), ("s[mesh.ep=4]", "s[mesh.ep=4]"),
])
def test_no_name_becomes_a_formula(name: str, written: str, tmp_path: Path) -> None:
    assert write_csv(tmp_path / "a.csv", table([fakes.report(name)])) == ("'" in written)
    assert read(tmp_path / "a.csv")[1][0] == written


def test_numbers_below_zero_are_numbers(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", table([fakes.report("a", 100, headroom_bytes=-7)]))
    head, line = read(tmp_path / "a.csv")
    assert line[head.index("headroom_bytes")] == "-7"


def test_parquet_keeps_types_units_and_names(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: Parquet was not written")
    results = [fakes.report("=cmd"), fakes.report("b", None), fakes.illegal("c")]
    made = table(results)
    write_parquet(tmp_path / "a.parquet", made)
    found = parquet.read_table(tmp_path / "a.parquet")
    assert found.to_pylist() == made.records
    assert found.column("name").to_pylist()[0] == "=cmd"
    types = {"string": "string", "int64": "int64", "float64": "double", "bool": "bool"}
    assert [str(field.type) for field in found.schema] == [types[column.dtype] for column in made.columns]
    field = found.schema.field("step_s")
    assert field.metadata[b"unit"] == b"s"
    assert field.metadata[b"description"] == b"one steady step"
    assert found.schema.metadata[b"rankscope.table"] == b"scenarios"


def test_an_empty_table_has_types_too() -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: Parquet was not written")
    types = {"string": "string", "int64": "int64", "float64": "double", "bool": "bool"}
    made = table([])
    assert [str(field.type) for field in arrow(made)] == [types[column.dtype] for column in made.columns]


def test_without_pyarrow_a_person_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'rankscope\[parquet\]'"):
        write_parquet(tmp_path / "a.parquet", MIXED)
    assert not (tmp_path / "a.parquet").exists()


def test_a_number_that_parquet_cannot_hold_is_told(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: Parquet was not written")
    with pytest.raises(InputError, match="passes 64 bits"):
        write_parquet(tmp_path / "a.parquet", table([fakes.report("a", headroom_bytes=2**70)]))
    assert not (tmp_path / "a.parquet").exists()
