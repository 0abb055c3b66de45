"""Columns keep their types, and what is not known stays empty."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.results.frame import Column, Field, Frame, flat, frame, typed, unit_of


@pytest.mark.parametrize(("values", "dtype", "kept"), [
    ([1, None, 2], "int64", [1, None, 2]),
    ([1, 2.5, None], "float64", [1.0, 2.5, None]),
    ([True, False], "bool", [True, False]),
    ([True, 1], "string", ["true", "1"]),
    (["auto", 4], "string", ["auto", "4"]),
    ([2**63, 1], "string", [str(2**63), "1"]),
    (["none", {"mode": "uniform", "a": [1]}], "string", ["none", '{"a": [1], "mode": "uniform"}']),
    ([None, None], "string", [None, None]),
])
def test_a_column_has_the_type_that_all_its_values_have(values: list[Any], dtype: str, kept: list[Any]) -> None:
    column, cells = typed("x", "", values)
    assert column.dtype == dtype
    assert [type(cell) for cell in cells] == [type(value) for value in kept]
    assert cells == kept


def test_a_name_ends_with_its_unit() -> None:
    ends = ("device_bytes", "step_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "cost_per_run_usd", "mfu")
    assert [unit_of(name) for name in ends] == ["B", "s", "tokens/s", "TFLOP/s", "USD", ""]


def test_text_is_one_line_that_any_file_can_hold() -> None:
    column = Column("name", "string", "", "")
    results = frame("scenarios", [Field(column, lambda item: item)], ["a\nb\x1b[31m\ud800é"], {})
    assert results.rows == (("a\ufffdb\ufffd[31m\ufffdé",),)


def test_columns_of_this_batch_follow_the_others() -> None:
    column = Column("n", "int64", "", "")
    results = frame("scenarios", [Field(column, lambda item: item)], [1, 2], {"k": ("a key", [None, "x"])})
    assert results.records == [{"n": 1, "k": None}, {"n": 2, "k": "x"}]
    assert results.to_dict() == {"n": [1, 2], "k": [None, "x"]}
    assert len(results) == 2
    assert repr(results) == "<table of scenarios: 2 rows, 2 columns>"


def test_keys_are_spelled_as_they_are_set() -> None:
    data = {"mesh": {"tp": 2}, "framework_options": {}, "training": {"lora": {"rank": 8}, "lengths": [1, 2]}}
    assert dict(flat(data)) == {"mesh.tp": 2, "training.lora.rank": 8, "training.lengths": [1, 2]}


def test_an_empty_table_has_its_columns() -> None:
    results = frame("ranks", [Field(Column("n", "int64", "", ""), len)], [], {})
    assert results == Frame("ranks", (Column("n", "int64", "", ""),), ())
    assert results.to_dict() == {"n": []}
