"""Rows of a search: one a candidate, with the keys that make it and what became of it, adding up to the counts."""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from search.test_search import BASE, BOTH, SMALL
from simcore.docgen.listing import options
from simcore.errors import InputError
from simcore.executors.shard import Shard
from simcore.inputs.loading import changed
from simcore.search.condition import condition
from simcore.search.rows import COLUMNS, _Keys
from simcore.search.search import Search, search
from simcore.search.space import candidates, space_of
from simcore.simulate import simulate
from simcore.tables import data_set
from simcore.tables.data_set import data_of
from simcore.tables.tabulate import ROW_FIELDS, table

pyarrow = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: no rows were written")


FULL_DISK = space_of(BASE, gpus=(4,), free=SMALL, frameworks=("megatron",))  # whose rows are longer than the journal


def read(folder: Path) -> list[dict[str, Any]]:
    return [row for path in data_of(folder) for row in pyarrow.read_table(path).to_pylist()]


def test_rows_add_up_to_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_set, "ROWS", 16)
    space = space_of(BASE, gpus=(4,), free=SMALL, frameworks=("fsdp2", "megatron"),
                     conditions=[condition("peak_gib < 20")])
    answer = search(Search(space, BOTH, top=2), kept=tmp_path)
    rows, counts = read(tmp_path), answer.counts
    assert [row["candidate"] for row in rows] == [*range(counts.candidates)]
    assert len(rows) > 16
    found = Counter(row["outcome"] for row in rows)
    assert found == Counter({"refused": counts.refused, "at_rest": counts.at_rest, "oom": counts.oom,
                             "unsure": counts.unsure, "excluded": counts.excluded, "slower": counts.slower,
                             "ranked": counts.ranked + counts.alike})
    best = answer.best[0]
    assert any((row["step_s"], row["peak_bytes"], row["framework"], row["num_gpus"]) == (
        best.step_s, best.peak_bytes, best.framework, best.num_gpus) for row in rows)
    assert Counter(row["problems"] for row in rows if row["outcome"] == "refused").total() == counts.refused


def test_a_row_has_the_keys_that_a_batch_would_have(tmp_path: Path) -> None:
    space = space_of(BASE, gpus=(2,), frameworks=("fsdp2", "megatron"), free={"mesh": (), "options": ()})
    every = [*candidates(space)]
    search(Search(space, BOTH), kept=tmp_path)
    shared = {field.column.name for field in ROW_FIELDS} & {column.name for column in COLUMNS}
    shared -= {"status", "verdict", "problems", "evidence", "headroom_bytes", "peak_bytes", "step_s", "mfu",
               "tokens_per_s_per_gpu", "cost_per_million_tokens_usd"}
    assert {"framework_options", "tp", "etp", "training.recompute", "training.precision.params", "method"} <= shared
    rows = read(tmp_path)
    compared = 0
    for row, candidate in list(zip(rows, every, strict=True)):
        if row["outcome"] != "refused" and compared < 8:
            (record,) = table([simulate(changed(BASE, candidate), timed=False)]).records
            assert {name: row[name] for name in shared} == {name: record[name] for name in shared}
            compared += 1
    assert compared > 5


def test_an_option_with_a_dot_in_its_name_is_one_key_of_a_row() -> None:
    base, keys = changed(BASE, {"framework": "automodel"}), _Keys
    names = [one["name"] for one in options("automodel") if "." in one["name"]]
    assert names
    for name in names:
        row = keys(base).row({f"framework_options.{name}": "true"})
        assert any(value == json.dumps({name: "true"}) for value in row), name


def test_a_search_that_was_stopped_has_the_same_rows(tmp_path: Path) -> None:
    question = Search(space_of(BASE, gpus=(2,), free=SMALL), BOTH)
    search(question, kept=tmp_path / "whole")
    search(question, kept=tmp_path / "again")
    journal = tmp_path / "again/journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-200])
    (tmp_path / "again/data/_about.json").write_text('{"version": 1, "rows": 0}')
    search(question, kept=tmp_path / "again")
    whole, again = ({path.name: path.read_bytes() for path in (tmp_path / name / "data").iterdir()}
                    for name in ("whole", "again"))
    assert whole == again


def test_shards_have_rows_of_their_own_candidates(tmp_path: Path) -> None:
    space = space_of(BASE, gpus=(4,), free=SMALL, frameworks=("fsdp2", "megatron"))
    whole, shards = tmp_path / "whole", [tmp_path / str(number) for number in (1, 2)]
    search(Search(space, BOTH, top=2), kept=whole)
    for number, folder in enumerate(shards, start=1):
        search(Search(space, BOTH, top=2), kept=folder, shard=Shard(number, 2))
        assert not (folder / "answer.json").exists()
    parts = [read(folder) for folder in shards]
    assert [row["candidate"] for row in parts[0]][:2] == [0, 2]
    together = sorted((row for part in parts for row in part), key=lambda row: row["candidate"])
    timed = ("outcome", "step_s", "tokens_per_s_per_gpu", "mfu", "cost_per_million_tokens_usd", "evidence")
    for row, one in zip(together, read(whole), strict=True):
        assert {name: row[name] for name in row if name not in timed} == {
            name: one[name] for name in one if name not in timed}
        assert {row["outcome"], one["outcome"]} <= {"slower", "ranked"} or row["outcome"] == one["outcome"]
    search(Search(space, BOTH, top=2), kept=tmp_path / "merged", parts=shards)
    assert read(tmp_path / "merged") == read(whole)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "whole"
    search(Search(FULL_DISK, BOTH, top=2), kept=folder)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    paths = [folder / "answer.json", *sorted((folder / "data").glob("*"))]
    return {path.name: path.read_bytes() for path in paths}


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """Context in which no file grows beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99, 1.0])
def test_a_search_that_met_a_full_disk_ends_alike(undisturbed: Path, tmp_path: Path, share: float) -> None:
    """The share is of the journal: in its first line, in the middle, at its last lines, and after it in the rows."""
    journal = (undisturbed / "journal.jsonl").stat().st_size
    question, kept = Search(FULL_DISK, BOTH, top=2), tmp_path / "kept"
    with disk_of(int(share * journal)), pytest.raises(InputError, match="cannot be written"):
        search(question, kept=kept)
    begun = (kept / "journal.jsonl").stat().st_size
    assert begun <= share * journal
    search(question, kept=kept)
    assert files(kept) == files(undisturbed)
    assert (kept / "journal.jsonl").stat().st_size == journal
    assert not [path for path in kept.iterdir() if path.name not in ("answer.json", "data", "journal.jsonl", ".lock")]
