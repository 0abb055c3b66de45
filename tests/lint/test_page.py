"""`docs/lint.md` is what the rules say."""

from __future__ import annotations

from checkout import ROOT
from simcore.lint.page import page
from simcore.lint.registry import RULES
from simcore.lint.without_effect import IGNORED


def test_the_page_is_the_rules_own() -> None:
    text = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
    assert text == page(), "run: python -m simcore.lint.page > docs/lint.md"


def test_each_rule_has_its_section_and_each_setting_its_row() -> None:
    lines = page().splitlines()
    assert [line for line in lines if line.startswith("### ")] == [f"### {rule.code}" for rule in RULES]
    assert sum(line.startswith("| ") and line.count("|") == 7 for line in lines) == len(IGNORED) + 2


def test_every_rule_has_a_source_that_names_a_file() -> None:
    sources = [*(rule.source for rule in RULES), *(row.source for row in IGNORED)]
    assert [source for source in sources if not source] == []
    assert all(".py" in row.source for row in IGNORED)
