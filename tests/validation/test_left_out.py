"""Errors on rows that the fit did not see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcore.validation import left_out as module
from simcore.validation.left_out import left_out
from simcore.validation.runs import read_measured


def test_every_fitted_group_and_machine_was_left_out_once() -> None:
    rows = [one for one in read_measured()[0] if one.row.step_s is not None and one.entry is not None]
    told = [left_out("group", group) for group in {one.row.group for one in rows}]
    assert sum(error is not None for error in told) >= 0.7 * len(told)
    assert all(error is None or 0 <= error < 2 for error in told)
    assert left_out("gpu", "dgx-h100") is not None


def test_nothing_is_told_where_nobody_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "data_folder", lambda _kind: tmp_path)
    module._read.cache_clear()
    assert left_out("group", "simumax-b200") is None
    (tmp_path / "left_out.json").write_text(json.dumps({"group": {"simumax-b200": {"median": 0.25}}}))
    module._read.cache_clear()
    assert (left_out("group", "simumax-b200"), left_out("group", "others"), left_out("gpu", "dgx-b200")) == (
        0.25, None, None)
    module._read.cache_clear()
