"""Each rule finds its bad example at the right line, and nothing in its good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.lint.examples import BASES, with_lines
from simcore.lint.linting import Linted, lint
from simcore.lint.registry import RULES
from simcore.lint.rule import Rule
from simcore.recipes.answers import Answers

IDS = [rule.code for rule in RULES]


def linted(folder: Path, base: str, lines: str, launch: tuple[str, str] = ("", "")) -> Linted:
    """Findings of all rules in a base with lines of an example."""
    file = folder / BASES[base].name
    file.write_text(with_lines(base, lines), encoding="utf-8")
    paths = [str(file)]
    if launch[0]:
        (folder / launch[0]).write_text(launch[1], encoding="utf-8")
        paths.append(str(folder / launch[0]))
    by_file = launch[0] or base in ("accelerate", "scenario")  # the file says how many processes there are
    machine = "" if base == "scenario" else "dgx-h100"
    answers = Answers.of_options(None if by_file else BASES[base].gpus, topology=machine)
    return lint(paths, answers)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_bad_example_is_found_at_its_line(rule: Rule, tmp_path: Path) -> None:
    found = linted(tmp_path, rule.example.base, rule.example.bad, rule.example.launch)
    own = [one for one in found.findings if one.code == rule.code]
    assert own, (found.findings, found.problems, found.unjudged)
    assert found.problems == ()
    for one in own:
        file, _, line = one.where.rpartition(":")
        lines = Path(file or one.where).read_text(encoding="utf-8").splitlines()
        assert not file or 0 < int(line) <= len(lines)
        assert one.instead
        assert one.source
        assert one.source != "by format"


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_good_example_is_not_found(rule: Rule, tmp_path: Path) -> None:
    found = linted(tmp_path, rule.example.base, rule.example.good, rule.example.launch)
    assert [one for one in found.findings if one.code == rule.code] == []
    assert found.problems == ()


@pytest.mark.parametrize("base", BASES)
def test_a_base_is_clean(base: str, tmp_path: Path) -> None:
    found = linted(tmp_path, base, "")
    assert [one for one in found.findings if one.severity != "note"] == []
    assert found.problems == ()


def test_codes_are_told_apart() -> None:
    assert len(set(IDS)) == len(IDS)
