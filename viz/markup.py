"""HTML and SVG text in which nothing is trusted: a plain `str` is always escaped, only `Markup` is not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

__all__ = ["Attribute", "Child", "Markup", "element", "escape", "join", "number", "printable"]


class Markup(str):
    """Text that is already well-formed markup, so that it is not escaped again."""

    __slots__ = ()


Child = str | int | None
Attribute = str | int | float | bool | None

_VOID: Final = frozenset({"meta", "input", "br", "hr", "col", "path", "rect", "line", "circle"})
_ENTITY: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
# Control characters, lone surrogates and non-characters: no XML text may hold them.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SPECIAL: Final = re.compile("[&<>\"']")
_ODD: Final = re.compile(f"{_UNPRINTABLE.pattern}|{_SPECIAL.pattern}")
"""Characters that are not written as they are; most texts have none."""


def escape(text: object) -> Markup:
    """Returns `text` escaped for an element or a quoted attribute; `Markup` is returned unchanged.

    Control characters except tab and line ends, surrogates, U+FFFE and U+FFFF are replaced by U+FFFD.
    """
    if isinstance(text, Markup):
        return text
    plain = str(text)
    if _ODD.search(plain) is None:
        return Markup(plain)
    return Markup(_SPECIAL.sub(lambda match: _ENTITY[match[0]], printable(plain)))


def printable(text: str) -> str:
    """Returns `text` with the characters that no XML text may hold replaced by U+FFFD, and markup unchanged."""
    return _UNPRINTABLE.sub("\ufffd", text)


def join(parts: Iterable[Child], separator: str = "") -> Markup:
    """Returns the parts in order with `separator` between them, all escaped unless they are `Markup`.

    None is left out.
    """
    return Markup(escape(separator).join(escape(part) for part in parts if part is not None))


def number(value: float) -> str:
    """Returns a number as text with at most two decimals and no trailing zeros, for SVG coordinates."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Returns `<name attribute="...">children</name>`, or `<name .../>` if it is void and has none.

    Void elements: br, input, path and others of `_VOID`. Text and values of attributes are escaped; floats have at most
    two decimals. Underscores become hyphens.

    `class_` is written as class, `aria_label` as aria-label; attributes and children that are None are left out, so are
    attributes that are False; True becomes the attribute's name.
    """
    opening = f"<{name}{''.join([_attribute(key, value) for key, value in attributes.items()])}"
    if name in _VOID and not children:
        return Markup(f"{opening}/>")
    inner = "".join([child if isinstance(child, Markup) else escape(child) for child in children if child is not None])
    return Markup(f"{opening}>{inner}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    shown = number(value) if isinstance(value, float) else key if value is True else str(value)
    return f' {_name_of(key)}="{shown if _ODD.search(shown) is None else escape(shown)}"'


@cache
def _name_of(key: str) -> str:
    """Name of an attribute by that of a parameter."""
    return key.rstrip("_").replace("_", "-")
