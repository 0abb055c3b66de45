"""Results and mistakes as a Python session shows them."""

from __future__ import annotations

import subprocess
import sys

import fakes
import small
from checkout import ROOT
from simcore import compare, simulate, table
from simcore.errors import InputError, Problem


def test_in_a_terminal_a_result_is_one_short_line() -> None:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 4, "ep": 2}))
    lines = [repr(report), str(report), repr(fakes.illegal("d")), repr(compare(report, report)), repr(table([report])),
             repr(fakes.report("e", None))]
    assert all(len(line) < 160 and "\n" not in line for line in lines)
    assert repr(fakes.report("a", 100)) == "<Report 'a': oom, peak 100.00 GiB of 80.00 GiB, step 500 ms>"
    assert repr(fakes.illegal("d")) == "<Report 'd': illegal, ep=3 does not divide 128 experts>"
    assert repr(compare(fakes.report("a"), fakes.report("b", 50))) == (
        "<Comparison 'a' -> 'b': device 40.00 GiB -> 50.00 GiB, step 500 ms -> 500 ms>")


def test_a_mistake_is_told_without_a_traceback() -> None:
    lines = InputError([Problem("a.yaml:3", "unknown key 'tpp'"), Problem("a.yaml:4", "no")])._render_traceback_()
    assert lines == ["InputError: a.yaml:3: unknown key 'tpp'", "InputError: a.yaml:4: no"]


def test_the_engine_starts_without_pictures() -> None:
    code = "import sys, simcore; simcore.simulate, simcore.compare, simcore.table; print('viz' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ended.stdout == "False\n"
