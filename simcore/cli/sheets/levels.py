"""Characters of eight heights, of which small curves on a terminal are made."""

from __future__ import annotations

from typing import Final

__all__ = ["LEVELS"]

LEVELS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
