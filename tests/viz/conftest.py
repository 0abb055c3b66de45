"""Fixtures of tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser import Tab, tab


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with tab() as browser_tab:
        yield browser_tab
