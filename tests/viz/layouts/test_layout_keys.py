"""Columns and names of layouts: every difference is in them, and nothing that all share."""

from __future__ import annotations

import pytest

from found import found
from viz.layouts.layout_keys import in_order, layout_columns, layout_names


def test_columns_have_what_differs_in_the_order_of_the_layouts() -> None:
    layouts = found(30).ranked
    columns = layout_columns(layouts)
    assert columns["tp"] == [str(one.keys["mesh.tp"]) for one in layouts]
    assert columns["micro batch"] == [str(one.keys["training.micro_batch_size"]) for one in layouts]
    assert set(columns["options"]) == {"\u2013", "reshard true"}
    same = [one.model_copy(update={"keys": one.keys | {"mesh.tp": 4}}) for one in layouts]
    assert "tp" not in layout_columns(same)


def test_a_name_has_degrees_and_what_differs() -> None:
    layouts = found(30).ranked
    for one, name in zip(layouts, layout_names(layouts), strict=True):
        assert name.startswith(f"{one.framework}, {one.topology}, {one.num_gpus} GPU")
        assert one.layout in name
        batch, recompute = one.keys["training.micro_batch_size"], one.keys["training.recompute"]
        assert f"micro batch {batch}, recompute {recompute}" in name
        assert name.endswith("reshard true") == ("framework_options.reshard" in one.keys)
    assert layout_names(layouts[:1]) == [layouts[0].layout]


@pytest.mark.parametrize(("texts", "expected"), [
    (["16", "8", "none", "2"], ["2", "8", "16", "none"]), (["b", "a"], ["a", "b"]), (["10", "9.5"], ["9.5", "10"])])
def test_numbers_are_sorted_by_value(texts: list[str], expected: list[str]) -> None:
    assert sorted(texts, key=in_order) == expected
