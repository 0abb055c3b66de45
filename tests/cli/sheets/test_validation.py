"""Tables of a comparison with measured runs, as they are printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fakes import rank, reader
from fakes import report as answer
from simcore.cli.sheets.tables import console
from simcore.cli.sheets.validation import validation
from simcore.validation.left_out import GroupLeftOut
from simcore.validation.runs import layout_of
from simcore.validation.validate import layouts, validate

SCENARIO = {"model": "nemotron-3-tiny", "framework": "megatron", "topology": "dgx-h100", "mesh": {"dp_shard": 2},
            "training": {"seq_len": 64}}
GROUP = GroupLeftOut(source="g", family="nemotron_h", machine="dgx-h100", configurations=1, fitted=0.05, left_out=0.125,
                     worst=0.3, alone=("scan", "permute"))


def row(name: str, **changed: Any) -> dict[str, Any]:
    return {"id": name, "group": "g", "source": "s", "kind": "tuned", **changed}


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Tables about a run of 0.4 s, simulated as 0.5 s (left out: 0.6 s), its repetition, a copy, one that ran apart."""
    monkeypatch.setattr("simcore.validation.step_times.ratio_left_out", {"a": 1.2}.get)
    monkeypatch.setattr("simcore.validation.step_times.groups_left_out", lambda: (GROUP,))
    peak = [{"of": "allocated_peak", "rank": 0, "bytes": 40 * 2**30}]
    rows = reader(tmp_path)(
        row("a", scenario=SCENARIO, step_s=0.4), row("b", scenario=SCENARIO, step_s=0.4),
        row("c", not_modelled="a copy of another run " + "x" * 110),
        row("d", not_modelled="ran otherwise", as_published=SCENARIO, readings=peak, verdict="fits"))
    reports = {layout_of(entry): answer(step_s=0.5, scenario=entry.scenario.normalised(), ranks=(rank(40),))
               for entry in layouts(rows) if entry.scenario}
    monkeypatch.setenv("COLUMNS", "400")
    console(sys.stdout).print(*validation(validate(rows, reports)), sep="\n", soft_wrap=True)
    return capsys.readouterr().out


def cells(text: str, start: str) -> list[str]:
    """Words of the first line that begins so."""
    return next(line for line in text.splitlines() if line.strip().startswith(start)).split()


def test_a_tolerance_has_both_errors_and_the_noise_with_its_share(printed: str) -> None:
    noise = ["0.0%", "100%"]
    line = cells(printed, "step time, tuned: median error")
    assert line[5:] == ["1", "6.0%", "50.0%", "25.0%", *noise, "NOT", "KEPT"]
    assert cells(printed, "step time, tuned: left out over fitted")[7:] == [
        "1", "150.0%", "200.0%", *noise, "NOT", "KEPT"]


def test_a_group_says_which_factors_rest_on_it_alone(printed: str) -> None:
    line = next(line for line in printed.splitlines() if "2: scan, permute" in line)
    assert line.split()[:7] == ["g", "nemotron_h", "dgx-h100", "1", "12.5%", "5.0%", "30.0%"]


def test_every_run_that_is_not_compared_is_there_with_its_reason(printed: str) -> None:
    copy = next(line for line in printed.splitlines() if "a copy of another run" in line)
    assert "..." in copy
    assert copy.split()[-4:] == ["1", "0", "0", "g"]
    otherwise = next(line for line in printed.splitlines() if "no scenario: ran otherwise" in line)
    assert otherwise.split()[-4:] == ["1", "1", "0", "g"]


def test_a_run_that_ran_otherwise_has_the_error_of_what_was_published(printed: str) -> None:
    """38 GiB of 40 GiB, and no time."""
    lines = [line for line in printed.splitlines() if line.strip().startswith("ran otherwise")]
    assert [line.split() for line in lines] == [["ran", "otherwise", "1", "1", "5.0%", "-5.0%", "0", "g"]]
