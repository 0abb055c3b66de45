"""YAML text of keys: reading it gives the same values, whatever characters a text has."""

from __future__ import annotations

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.dump import yaml_block, yaml_text

TEXTS = (":4096:8", "a: b", "? a", "- a", "", "yes", "1e3", "12:30:45", "#x", "a\nb", "'", '"', "{a", "a]", ", a", "*a",
         "&a", "!a", "%a", "@a", "~", "null", " a ", "a #b", "a:", "\u202ey")


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_back_in_a_block_and_on_a_line(text: str) -> None:
    data = {"name": text, "inner": {"key": text, "other": [text, 1]}, "outer": {"inner": {"key": text}, "more": [1.5]}}
    assert parse_document(yaml_text(data), "a.yaml").data == data


@pytest.mark.parametrize(("value", "text"), [("NO", 'a: "NO"\n'), ("off", 'a: "off"\n'), (1e-05, "a: 1.0e-05\n"),
                                             (1e22, "a: 1.0e+22\n"), (0.5, "a: 0.5\n"), ("none", "a: none\n")])
def test_tools_that_follow_yaml_1_1_read_the_same(value: object, text: str) -> None:
    """There `NO` is false and `1e-05` a text: accelerate's `distributed_type: NO` would be no word."""
    assert yaml_block({"a": value}) == text
    assert parse_document(text, "a.yaml").data == {"a": value}
