"""Outcomes of `rankscope verify` on a clean machine, as `tests/truth/verify_clean.py` stored them, in docs/verify.md.

    PYTHONPATH=tests python tests/verify/test_clean.py --write
"""

from __future__ import annotations

import json
import sys
from typing import Any

from checkout import ROOT
from pages import shown, write

FOLDER, PAGE, NAME = ROOT / "tests/truth/verified", ROOT / "docs/verify.md", "outcomes on a clean machine"
RUNS: list[dict[str, Any]] = json.loads((FOLDER / "clean.json").read_text(encoding="utf-8"))
SUBJECTS = {"placement": "tensors", "collectives": "calls", "groups": "communicators"}


def described(run: dict[str, Any]) -> str:
    """The first line of a layout's file: a comment that says what it is."""
    text = (FOLDER / f"{run['name']}.yaml").read_text(encoding="utf-8")
    return text.partition("\n")[0].removeprefix("# ")


def outcome(run: dict[str, Any]) -> str:
    lines = [line for line in run["lines"] if not line["skipped"]]
    if not run["agrees"]:
        return "differs first at " + "; ".join(f"{line['subject']}: {line['difference']}" for line in lines
                                               if line["difference"])
    counted = [f"{line['num_compared']} {SUBJECTS[line['subject']]}" for line in lines if line["subject"] in SUBJECTS]
    return f"agrees: {', '.join([*counted, *(line['subject'] for line in lines if line['subject'] not in SUBJECTS)])}"


def table() -> str:
    rows = [f"| `{run['command'].removeprefix('rankscope verify ')}` | {described(run)} | {', '.join(run['smaller'])} "
            f"| {outcome(run)} | {run['exit_code']} | {run['seconds']:.0f} | {run['whole_seconds']} |" for run in RUNS]
    heads = "layout | smaller by | outcome | exit code | framework, s | command, s"
    return "\n".join((f"| `rankscope verify ...` | {heads} |", "| --- | --- | --- | --- | --- | --- | --- |", *rows))


def test_the_page_has_what_a_clean_machine_said() -> None:
    assert shown(PAGE, NAME) == table(), "run: PYTHONPATH=tests python tests/verify/test_clean.py --write"


def test_each_layout_agrees_there_and_wrong_ones_are_caught() -> None:
    told = {run["command"].removeprefix("rankscope verify "): (run["exit_code"], run["agrees"]) for run in RUNS}
    assert {file.name: (0, True) for file in FOLDER.glob("*.yaml")}.items() <= told.items()
    wrong = [run for run in RUNS if "--real-set" in run["command"]]
    assert len(wrong) == len(RUNS) - 6 == 2
    assert all(not run["agrees"] and run["exit_code"] == 1 and run["lines"][0]["difference"] for run in wrong)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"]
    write(PAGE, {NAME: table})
