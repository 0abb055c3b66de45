"""`rankscope query`: a table or JSON, and one line for what cannot be asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import cast

import pytest

from command import Run
from fakes import entry, work
from simcore.batch.run import Work
from simcore.cli import query
from simcore.cli.session import run_entries
from simcore.inputs.loading import Entry

pytest.importorskip("duckdb", reason="duckdb is not installed: nothing was asked")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    entries = [entry(f"s{i}", ("fits", "oom", "illegal")[i % 3]) for i in range(6)]
    run_entries(cast("list[Entry]", entries), cast("Work", work), 1, tmp_path / "out")
    return tmp_path / "out"


def test_rows_are_a_table(ran: Run, out: Path) -> None:
    told = ran("query", out, "select name, verdict, peak_gib, problems is null as ok from results limit 3")
    assert (told.code, told.err) == (0, "")
    assert told.out.splitlines() == [
        "name  verdict  peak_gib  ok", "s0    fits           40  true", "s1    oom           100  true",
        "s2    -               -  false"]


def test_rows_are_json(ran: Run, out: Path) -> None:
    told = ran("query", out, "select name, peak_gib from results where status = 'ok' order by peak_gib desc", "--json")
    assert json.loads(told.out)[0] == {"name": "s1", "peak_gib": 100.0}
    assert json.loads(ran("query", out, "select * from results where false", "--json").out) == []


def test_a_terminal_shows_so_many_rows(ran: Run, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_MOST", 2)
    assert ran("query", out, "from results select name").out.splitlines()[-1] == (
        "and 4 more rows: --json has all of them")


@pytest.mark.parametrize("sql", ["select nope from results", "selec", "copy results to 'x'", "", "select 1; select 2"])
def test_wrong_sql_is_one_line_and_exit_2(ran: Run, out: Path, sql: str) -> None:
    told = ran("query", out, sql)
    assert (told.code, told.out, len(told.err.splitlines())) == (2, "", 1)
    assert told.err.startswith("rankscope: SQL: ")


@pytest.mark.parametrize("folder", ["none", ".", "out/results.jsonl"])
def test_a_folder_that_is_none(ran: Run, out: Path, folder: str) -> None:
    told = ran("query", out.parent / folder, "select 1")
    assert (told.code, told.out, len(told.err.splitlines())) == (2, "", 1)


def test_without_duckdb_a_line_says_how_to_get_it(ran: Run, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    told = ran("query", out, "select 1")
    assert (told.code, told.err) == (2, "rankscope: rankscope query: needs duckdb, which is not installed: "
                                        "pip install 'rankscope[query]'\n")
