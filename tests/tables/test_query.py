"""SQL over rows: keys as they are written in a scenario, and nothing that reads or writes anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.cli.session import run_entries
from simcore.errors import InputError
from simcore.inputs.loading import read
from simcore.simulate import simulate
from simcore.tables.query import ask

pytest.importorskip("duckdb", reason="duckdb is not installed: nothing was asked")

TEXT = """\
name: q
model: llama-tiny
framework: fsdp2
topology: dgx-h100
mesh: {dp_shard: 8}
training: {seq_len: 8, global_batch_size: 8}
sweep: {training.seq_len: [8, 16], mesh.ep: [1, 2]}
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("query")
    (folder / "q.yaml").write_text(TEXT, encoding="utf-8")
    run_entries(read([folder / "q.yaml"]), simulate, 1, folder / "out")
    return folder / "out"


def test_keys_are_written_as_in_a_scenario(out: Path) -> None:
    found = ask(out, "select training.seq_len, mesh.ep, ep, training.precision.compute, seq_len from results")
    assert [*found.rows] == [(8, 1, 1, "bf16", 8), (8, 2, 2, "bf16", 8), (16, 1, 1, "bf16", 16), (16, 2, 2, "bf16", 16)]
    assert found.names[:2] == ("seq_len", "ep")


def test_units_have_short_names(out: Path) -> None:
    ((peak, gib),) = ask(out, "select max(peak_bytes), max(peak_gib) from results").rows
    assert gib == peak / 2**30 > 0.5


def test_columns_tell_what_they_are(out: Path) -> None:
    found = [*ask(out, "select unit, description from columns where name = 'step_s'").rows]
    assert found == [("s", "one steady step")]


@pytest.mark.parametrize("sql", [
    "copy results to '{0}/x.csv'", "select * from read_csv('{0}/secret')", "select * from '{0}/secret'",
    "select * from read_text('{0}/secret')", "select * from glob('{0}/*')", "attach '{0}/x.db'", "install httpfs",
    "load httpfs", "set enable_external_access = true", "reset lock_configuration", "create table t (a int)",
    "drop view results", "select 1; select 2", "export database '{0}/x'", "select * from 'http://localhost/x.parquet'",
    "select * from parquet_scan('{0}/out/data/*.parquet')", "insert into results values (1)", "pragma database_list",
    "select * from secret_table", "call pragma_version()", "", ";", "--", "selec 1", "select nope from results",
    "select training.nope from results", "select * from results where", "select 1 +" + " 1 +" * 20_000,
    "select " + "(" * 9_000 + "1" + ")" * 9_000, "select * from sniff_csv('{0}/secret')"])
def test_anything_but_a_question_is_one_line(out: Path, sql: str) -> None:
    folder = out.parent
    (folder / "secret").write_text("a,b\n1,2\n")
    secret_table = {"a": [1]}
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(InputError) as caught:
        list(ask(out, sql.format(folder)).rows)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value.problems[0])
    assert sorted(path.name for path in folder.iterdir()) == before
    assert secret_table == {"a": [1]}
    assert len([*ask(out, "select * from results").rows]) == 4


def test_a_suggestion_comes_with_an_unknown_column(out: Path) -> None:
    with pytest.raises(InputError, match="step_s"):
        ask(out, "select steps from results")


def test_an_error_on_the_way_is_one_line_too(out: Path) -> None:
    with pytest.raises(InputError, match="Conversion Error"):
        list(ask(out, "select cast(name as int) from results").rows)


@pytest.mark.parametrize("damage", ["torn", "none"])
def test_rows_that_cannot_be_read(out: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "copy"
    (folder / "data").mkdir(parents=True)
    for path in [*out.glob("results.jsonl"), *out.glob("data/*")]:
        (folder / path.relative_to(out)).write_bytes(path.read_bytes())
    part = folder / "data/part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100]) if damage == "torn" else part.unlink()
    with pytest.raises(InputError, match="data"):
        list(ask(folder, "select * from results").rows)
