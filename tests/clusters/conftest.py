"""Fixtures of the tests of clusters."""

from __future__ import annotations

import pytest

from clusters.driven import ASKED, command, ended, scenario


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """Standard output and answer of an undisturbed search on this machine."""
    folder = tmp_path_factory.mktemp("whole")
    code, out, err = ended(command("search", scenario(folder), *ASKED, "-o", "whole", folder=folder))
    assert code == 0, err
    return out, (folder / "whole" / "answer.json").read_bytes()
