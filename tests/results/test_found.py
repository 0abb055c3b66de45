"""Settings of a found layout as arguments of a command: each is read back as the value it was."""

from __future__ import annotations

from typing import Any

import pytest

from found import found
from simcore.inputs.document import parse_value
from simcore.results.found import setting

VALUES: list[Any] = [
    1, 0.5, True, False, None, "auto", "none", "true", "No", "null", "y", "1e3", "1.5", "1_000", "0x1f", "12:30",
    "2001-01-01", "a b", "a: b", "it's", 'say "x"', "#1", "", "~", "-", "\u00e9\u6a21", "a\nb", ".inf", "nan", "E5",
    ["attention", "mlp"], {"file": "my nodes.yaml", "num_nodes": 2}, [], {}]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_setting_is_read_back_as_its_value(value: Any) -> None:
    key, _, text = setting("a.b", value).partition("=")
    assert key == "a.b"
    again = parse_value(text, "--set")
    assert again == value
    assert type(again) is type(value)


def test_plain_words_have_no_quotes() -> None:
    assert setting("framework", "megatron_fsdp") == "framework=megatron_fsdp"


def test_a_key_of_a_layout_goes_before_that_of_the_scenario() -> None:
    result = found(1, settings={"mesh.tp": 99, "model": "x"})
    path, *rest = result.arguments(result.ranked[0])
    assert path == result.path
    assert rest[::2] == ["--set"] * (len(rest) // 2)
    assert f"mesh.tp={result.ranked[0].keys['mesh.tp']}" in rest
    assert "mesh.tp=99" not in rest
    assert "model=x" in rest
