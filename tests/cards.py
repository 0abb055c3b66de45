"""Cards of results in notebooks: their HTML, and the words in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Protocol


class Shown(Protocol):
    def _repr_html_(self) -> str: ...


def html(shown: Shown) -> str:
    return shown._repr_html_()


def parsed(shown: Shown) -> ET.Element:
    return ET.fromstring(html(shown))  # noqa: S314 - written by us


def words(shown: Shown) -> str:
    root = parsed(shown)
    for style in list(root.iter("style")):
        style.text = ""
    return " ".join(" ".join(root.itertext()).split())
