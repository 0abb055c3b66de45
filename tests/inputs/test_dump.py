"""YAML text of keys: reading it gives the same values, whatever characters a text has."""

from __future__ import annotations

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.dump import yaml_text

TEXTS = (":4096:8", "a: b", "? a", "- a", "", "yes", "1e3", "12:30:45", "#x", "a\nb", "'", '"', "{a", "a]", ", a", "*a",
         "&a", "!a", "%a", "@a", "~", "null", " a ", "a #b", "a:", "\u202ey")


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_back_in_a_block_and_on_a_line(text: str) -> None:
    data = {"name": text, "inner": {"key": text, "other": [text, 1]}, "outer": {"inner": {"key": text}, "more": [1.5]}}
    assert parse_document(yaml_text(data), "a.yaml").data == data
