"""The two streams and the files: what is complete, what is kept short, what is refused."""

from __future__ import annotations

import json

import pytest

from fakes import illegal, report
from simcore.cli import output
from simcore.errors import Problem
from simcore.results.report import Advice


def test_json_is_a_list_with_one_result_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json([report("a"), illegal("b")])
    text = capsys.readouterr().out
    assert [row["name"] for row in json.loads(text)] == ["a", "b"]
    assert len(text.splitlines()) == 4


def test_nothing_of_the_summary_is_cut_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal narrower than a name and one column wraps lines by itself."""
    monkeypatch.setenv("COLUMNS", "20")
    output.print_summary([report("a-name-of-24-characters.")])
    text = capsys.readouterr().out
    for word in ("a-name-of-24-characters.", "40.00 GiB of 80.00 GiB (50%)", "backward, layers.51", "verdict"):
        assert word in text
    output.print_summary([report("a-name-of-24-characters.")], details=True)
    text = capsys.readouterr().out
    for word in ("a-name-of-24-characters.", "pp2 dp4 tp2 ep4", "backward, layers.51", "12,346"):
        assert word in text


def test_advice_stands_below_the_table_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    advice = Advice(changes={"mesh.ep": 8}, verdict="fits", peak_bytes=2**30, headroom_bytes=2**30)
    oom = report("big", 100, advice=(advice,))
    output.print_summary([report("small"), oom])
    assert capsys.readouterr().out.splitlines()[-1].endswith("--set mesh.ep=8")
    output.print_json([oom])
    assert json.loads(capsys.readouterr().out)[0]["advice"] == [advice.model_dump()]


def test_of_very_many_problems_the_first_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain([Problem(f"x.yaml:{i}", "evil\x1b[31m" + "x" * 2000) for i in range(1234)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 31
    assert lines[-1] == "rankscope: and 1,204 more"
    assert "\x1b" not in lines[0]
    assert max(map(len, lines)) < 1100


def test_what_every_layout_of_a_sweep_does_wrong_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    same, other = Problem("x.yaml:1", "no"), Problem("x.yaml:2", "no")
    output.complain([*[same] * 1234, other])
    assert capsys.readouterr().err == "rankscope: x.yaml:1: no (1,234 times)\nrankscope: x.yaml:2: no\n"


def test_no_bar_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress(1000) as advance:
        advance(report("a"))
    assert capsys.readouterr().err == ""


def test_a_long_line_keeps_how_often_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain([Problem("x.yaml:1", "x" * 5000)] * 3)
    assert capsys.readouterr().err.endswith("x (3 times)\n")
