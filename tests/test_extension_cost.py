"""The page of what extensions cost is what the history says, where this checkout has one."""

from __future__ import annotations

import re

import pytest

from checkout import ROOT
from extension_cost import BASE, has, page

PAGE = (ROOT / "docs/extending/cost.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_history_counts() -> None:
    counted = re.search(r"between (\w+) and (\w+)", PAGE)
    assert counted is not None
    assert counted[1] == BASE
    if not has(BASE, counted[2]):
        pytest.skip("this checkout has no history")
    assert page(counted[2]) == PAGE
