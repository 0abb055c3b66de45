"""YAML text of a scenario's keys, for files that rankscope writes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from simcore.inputs.yaml_parser import KeyPath

__all__ = ["patched_yaml", "yaml_block", "yaml_entry", "yaml_text"]


_FLAGS_OF_1_1: Final = frozenset({"y", "n", "yes", "no", "on", "off"})


def yaml_text(data: Mapping[str, Any]) -> str:
    """YAML text of plain values (mappings, lists, text, numbers); reading it gives the same values.

    Keys in their order, the innermost mappings on one line.
    """
    return _written(data, default_flow_style=None, width=120)


def yaml_block(data: Mapping[str, Any]) -> str:
    """YAML text as `yaml_text`, with every key on a line of its own, however long."""
    return _written(data, default_flow_style=False, width=sys.maxsize)


def yaml_entry(key: str, value: Any) -> str:
    """YAML text of one key in one line without its end: `key: value`, lists and mappings within brackets."""
    return _written({key: value}, default_flow_style=True, width=sys.maxsize).removesuffix("\n")[1:-1]


def patched_yaml(text: str, values: Mapping[KeyPath, Any], dropped: Iterable[KeyPath]) -> str:
    """YAML text with some keys set and others removed; all else stays as it is written, comments too.

    `values`: by path of keys; mappings that are missing on the way are made. Text with two documents or an unknown tag
    is not for it.
    """
    yaml, stream = YAML(), StringIO()
    for name, value in {"preserve_quotes": True, "width": sys.maxsize}.items():
        setattr(yaml, name, value)
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = yaml.load(text)
    for path, value in values.items():
        inner = tree
        for key in path[:-1]:
            if not isinstance(inner.get(key), dict):
                inner[key] = CommentedMap()
            inner = inner[key]
        inner[path[-1]] = value
    for path in dropped:
        inner = tree
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
    yaml.dump(tree, stream)
    return stream.getvalue()


def _written(data: Mapping[str, Any], **settings: Any) -> str:
    writer = YAML(typ="safe", pure=True)
    for name, value in {**settings, "sort_base_mapping_type_on_output": False}.items():
        setattr(writer, name, value)
    writer.representer.add_representer(str, _quoted)
    writer.representer.add_representer(float, _with_point)
    stream = StringIO()
    writer.dump(dict(data), stream)
    return stream.getvalue()


def _quoted(representer: Any, text: str) -> Any:
    """Node of a text, in quotes where it would be read as the beginning of a key or value, as in `:4096:8`.

    So is a word that YAML 1.1 takes for true or false: recipes are read by tools that follow it.
    """
    marked = any(sign in text for sign in ":?") or text.casefold() in _FLAGS_OF_1_1
    return representer.represent_scalar("tag:yaml.org,2002:str", text, style='"' if marked else None)


def _with_point(representer: Any, value: float) -> Any:
    """Node of a number; one with an exponent gets a point, without which YAML 1.1 reads `1e-05` as text."""
    text = repr(value)
    if "e" not in text or "." in text:
        return representer.represent_float(value)
    return representer.represent_scalar("tag:yaml.org,2002:float", text.replace("e", ".0e"))
