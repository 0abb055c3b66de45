"""A table of results: the columns that only some batches have, and what is empty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fakes
import small
from checkout import ROOT
from simcore.inputs.loading import load
from simcore.results.frame import flat
from simcore.simulate import simulate
from simcore.tables.tabulate import ROW_FIELDS, columns_page, table


def test_what_is_not_known_is_empty_and_none_of_it_is_zero() -> None:
    quiet = fakes.report("quiet", 40, ranks=(fakes.rank(40, traffic=()),))
    made = table([fakes.report("loud"), quiet, fakes.report("placed", None), fakes.illegal("odd")]).to_dict()
    assert made["sent_all_gather_dp_shard_bytes"] == [6 * fakes.GIB, 0, None, None]
    assert made["device_bytes"] == [40 * fakes.GIB, 40 * fakes.GIB, None, None]
    assert made["at_rest_bytes"][2:] == [7 * fakes.GIB + 1024, None]
    assert made["problems"] == [None, None, None, "x.yaml:3: ep=3 does not divide 128 experts [fsdp2: experts]"]


def test_a_row_has_every_key_that_makes_its_scenario(tmp_path: Path) -> None:
    asked: dict[str, list[Any]] = {"mesh.dp_shard": [1, 2], "training.seq_len": [64, 128],
                                   "framework_options.set_last_reshard": [True, False]}
    file = tmp_path / "s.yaml"
    file.write_text(f"name: s\nmodel: {small.TINY}\nframework: fsdp2\ntopology: dgx-h100\nsweep: {asked}\n",
                    encoding="utf-8")
    made = table([simulate(one) for one in load(file)])
    columns = made.to_dict()
    assert columns["training.seq_len"] == [64, 64, 128, 128, 64, 64, 128, 128]
    assert columns["dp_shard"] == [1] * 4 + [2] * 4
    assert set(columns["training.recompute"]) == {"none"}
    assert columns["framework_options.set_last_reshard"] == [True, False] * 4
    keys = dict(flat(load(file)[0].normalised()))
    apart = {"name", "workload", "model", "framework", "topology", "training.method", "framework_options"}
    assert {key for key, value in keys.items() if value not in (None, []) and not key.startswith("mesh.")} - apart <= {
        *columns}


def test_a_key_that_is_a_word_or_a_block_is_text() -> None:
    one = small.scenario("fsdp2", {"dp_shard": 2}, recompute={"mode": "uniform", "num_layers": 2})
    (row,) = table([simulate(one)]).records
    assert json.loads(str(row["training.recompute"]))["num_layers"] == 2


@pytest.mark.parametrize("scenario", [
    {}, {"mesh": "x", "training": 3, "model": []}, {"mesh": {"pp": "2", "tp": None, "cp": True}, "model": {}},
    {"status": 1, "sent_bytes": 2, "a\nb": 3},
    {"mesh": {"dp_shard": 4}, "training": {"method": {"a": 1}}, "model": {"config": "x", "overrides": {"a": 1}}}])
def test_results_of_somebody_elses_become_a_table_too(scenario: dict[str, Any]) -> None:
    strange = fakes.illegal("b").model_copy(update={"scenario": scenario})
    made = table([fakes.report("a"), strange])
    types: dict[str, type] = {"string": str, "int64": int, "float64": float, "bool": bool}
    for place, column in enumerate(made.columns):
        assert {type(row[place]) for row in made.rows} <= {types[column.dtype], type(None)}, column.name
    assert made.to_dict()["model"][1] in (None, "x", "[]")
    assert len(made.to_dict()) == len(made.columns)
    assert all(column.name.isprintable() for column in made.columns)


def test_columns_stand_in_one_order_whatever_comes_first() -> None:
    results = [fakes.report("a"), fakes.report("b", 100), fakes.illegal("c")]
    names = [[column.name for column in table(order).columns] for order in (results, results[::-1])]
    assert names[0] == names[1]
    fixed = [field.column.name for field in ROW_FIELDS]
    assert names[0][: len(fixed)] == fixed
    assert len(set(names[0])) == len(names[0])


def test_the_page_of_columns_is_the_codes_own() -> None:
    page = (ROOT / "docs/columns.md").read_text(encoding="utf-8")
    assert page == columns_page(), "run: python -m simcore.tables.tabulate > docs/columns.md"
