"""YAML text of a scenario's keys, for files that rankscope writes."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

__all__ = ["yaml_entry", "yaml_text"]


def yaml_text(data: Mapping[str, Any]) -> str:
    """YAML text of plain values (mappings, lists, text, numbers); reading it gives the same values."""
    writer = YAML(typ="safe", pure=True)
    settings = {"default_flow_style": None, "sort_base_mapping_type_on_output": False, "width": 120}
    for name, value in settings.items():  # blocks in the order of the keys, the innermost mappings on one line
        setattr(writer, name, value)
    writer.representer.add_representer(str, _quoted)
    stream = StringIO()
    writer.dump(dict(data), stream)
    return stream.getvalue()


def yaml_entry(key: str, value: Any) -> str:
    """YAML text of one key, without the end of the line: `key: value`, lists and mappings within brackets."""
    block = yaml_text({key: value, "end": []})  # a mapping that holds a list is written a key a line
    return block.removesuffix("\n").rpartition("\n")[0]


def _quoted(representer: Any, text: str) -> Any:
    """Node of a text, in quotes where it would be read as the beginning of a key or value, as in `:4096:8`."""
    marked = any(sign in text for sign in ":?")
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style='"' if marked else None)
