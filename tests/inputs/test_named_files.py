"""Paths in a scenario lead to the same files from another folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.inputs.named_files import named_from


@pytest.mark.parametrize(("data", "moved"), [
    ({"model": "mine/config.json", "topology": "own.yaml"}, {"model": "../a/mine/config.json",
                                                             "topology": "../a/own.yaml"}),
    ({"model": {"config": "config.json", "overrides": {}}, "name": "x"},
     {"model": {"config": "../a/config.json", "overrides": {}}, "name": "x"}),
    ({"model": "qwen3-8b", "topology": "dgx-h100"}, {"model": "qwen3-8b", "topology": "dgx-h100"}),
    ({"model": "/whole/config.json"}, {"model": "/whole/config.json"}),
])
def test_relative_paths_are_written_from_the_other_folder(tmp_path: Path, data: dict[str, object],
                                                          moved: dict[str, object]) -> None:
    assert named_from(data, tmp_path / "a", tmp_path / "b") == moved
