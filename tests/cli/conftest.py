"""Fixtures of tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import SCENARIO


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Path of `command.SCENARIO`."""
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)
