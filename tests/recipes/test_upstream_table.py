"""The table of upstream's recipes: the page has what is stored, and what is stored adds up."""

from __future__ import annotations

import re
from typing import Any

import pytest

from recipes.upstream import OUTCOMES
from recipes.upstream_table import PAGE, filled, reasons, rule_of, stored, table

ROWS = stored()


def test_the_page_has_what_is_stored() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page, ROWS), "run: PYTHONPATH=tests python -m recipes.upstream_table --page"
    assert table(ROWS) in page
    for theirs in (True, False):
        assert reasons(ROWS, "Bridge", theirs=theirs) in page


def test_what_upstream_refuses_itself_is_told_apart_with_its_rule() -> None:
    """Every rule of theirs names a file of upstream."""
    theirs, ours = (reasons(ROWS, "Bridge", theirs=which) for which in (True, False))
    assert all(re.search(r"`[\w/]+\.py(:\d+)?`", line) for line in theirs.splitlines()[2:])
    for words in ("world_size (", "training.global_batch_size: expected a multiple", "fp8 by mxfp8", "in fp4"):
        assert words in theirs
        assert words not in ours
    assert not rule_of("model.moe_paged_stash: pages of experts' activations")


def test_another_count_is_another_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    more: list[dict[str, Any]] = [{**row, "counts": {**row["counts"], "refused": 1 + row["counts"].get("refused", 0)}}
                                  for row in ROWS]
    assert filled(page, more) != page


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_row_says_where_its_recipes_are_and_what_became_of_each(row: dict[str, Any]) -> None:
    assert all(re.fullmatch(r"[0-9a-f]{8}|v[0-9.]+", part["commit"]) for part in row["of"])
    assert {*row["counts"]} <= {*OUTCOMES}
    assert sum(row["counts"].values()) > 0
    assert row["counts"].get("traceback", 0) == 0
    if "loose" in row:
        assert sum(row["loose"].values()) == sum(row["counts"].values())
    assert max(row["why"].values(), default=0) <= sum(row["counts"].values())
