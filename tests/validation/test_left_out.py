"""Errors on rows that the fit did not see, as they are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from simcore.validation import left_out as module
from simcore.validation.left_out import groups_left_out, left_out, ratio_left_out
from simcore.validation.runs import read_measured

GROUP = {"source": "s", "family": "llama", "machine": "dgx-h100", "configurations": 1, "fitted": 0.1, "left_out": 0.2,
         "worst": 0.2, "alone": ["scan"], "ratios": [[1.25, ["a", "b"]]]}


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder in which the file is looked for."""
    monkeypatch.setattr(module, "data_folder", lambda _kind: tmp_path)
    module._told.cache_clear()
    module._ratios.cache_clear()
    yield tmp_path
    module._told.cache_clear()
    module._ratios.cache_clear()


def test_nothing_is_told_where_nothing_was_left_out(stored: Path) -> None:
    assert (left_out("group", "s"), ratio_left_out("a"), groups_left_out()) == (None, None, ())
    assert not (stored / module.FILE).exists()


def test_a_row_has_the_ratio_of_its_group(stored: Path) -> None:
    (stored / module.FILE).write_text(json.dumps({"together": [GROUP], "group": {"s": {"median": 0.25}}, "gpu": {}}))
    assert (ratio_left_out("a"), ratio_left_out("b"), ratio_left_out("c")) == (1.25, 1.25, None)
    assert (left_out("group", "s"), left_out("group", "t"), left_out("gpu", "dgx-h100")) == (0.25, None, None)
    assert [(one.source, one.alone, one.worst) for one in groups_left_out()] == [("s", ("scan",), 0.2)]


def test_every_fitted_group_and_machine_was_left_out_once() -> None:
    rows = [one for one in read_measured()[0] if one.row.step_s is not None and one.entry is not None]
    told = [left_out("group", group) for group in {one.row.group for one in rows}]
    assert sum(error is not None for error in told) >= 0.7 * len(told)
    assert all(error is None or 0 <= error < 2 for error in told)
    assert left_out("gpu", "dgx-h100") is not None


def test_groups_are_of_one_source_family_and_machine() -> None:
    groups = groups_left_out()
    assert len({(group.source, group.family, group.machine) for group in groups}) == len(groups) > 50
    assert sum(group.configurations for group in groups) > 300
