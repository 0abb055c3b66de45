"""The page of options is what the frameworks' tables take."""

from __future__ import annotations

import pytest

from checkout import ROOT
from simcore.docgen.options import options_page


@pytest.mark.slow
def test_the_page_is_what_the_frameworks_take() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == options_page(), "run: python -m simcore.docgen.options > docs/options.md"
