"""Constants that were fitted on step times: the page is current, and no constant belongs to a single row."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np
import pytest

from checkout import ROOT
from simcore.hardware.efficiency import load_efficiency
from simcore.validation.runs import read_measured

TRUTH = ROOT / "tests" / "truth"
FITTED: dict[str, Any] = json.loads((TRUTH / "measured" / "fitted.json").read_text(encoding="utf-8"))


@pytest.fixture
def fit_time(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(TRUTH), *sys.path])
    return importlib.import_module("fit_time")


def test_the_page_is_what_the_fit_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TRUTH), *sys.path])
    page = importlib.import_module("fit_page").page()
    assert (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8") == page


def test_files_hold_what_the_fit_found(fit_time: Any) -> None:
    point = fit_time.start()
    for number in fit_time.NUMBERS:
        at: Any = load_efficiency(number.file).model_dump(by_alias=True)
        for key in number.keys:
            at = at[key]
        assert at["value"] == fit_time.written(number, point), (number.file, number.keys)


def test_every_factor_is_of_many_rows_or_says_that_none_tells() -> None:
    groups = {one.row.group for one in read_measured()[0]}
    assert all(set(found["rows_of"]) <= groups for found in FITTED.values())
    assert any(found["rows_of"] for found in FITTED.values())


def test_a_fit_finds_what_made_the_times(fit_time: Any) -> None:
    """Errors that are a straight line of two factors: it goes there, and a row left out changes nothing."""
    names = list(fit_time.FACTORS)
    true = np.zeros(len(names))
    true[:2] = 0.1, -0.15
    slopes = np.zeros((1000, len(names)))
    slopes[::2, 0], slopes[1::2, 1] = -0.8, -0.6
    fit_time._CASES[:] = [fit_time.Case("g", "t", "h100", ("r",), 1.0, "step", None, None)] * 1000
    try:
        line = fit_time.Line(dict.fromkeys(names, 0.0), -slopes @ true, slopes)
        found = fit_time.solved(line, np.ones(1000))
        fewer = fit_time.solved(line, np.arange(1000) % 10 != 0)
    finally:
        fit_time._CASES.clear()
    assert [found[name] for name in names[:2]] == pytest.approx([0.1, -0.15], abs=0.01)
    assert [fewer[name] for name in names[:2]] == pytest.approx([0.1, -0.15], abs=0.01)
    assert all(abs(found[name]) < 1e-9 for name in names[2:])
