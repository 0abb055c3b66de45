"""The style sheet that pages, cards of notebooks and figures share: `style.css` after the rules of the palette."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from viz.palette import style_rules

__all__ = ["stylesheet"]


@cache
def stylesheet() -> str:
    """Returns the text of the style sheet: colours and fills of every tone, then the rules of `style.css`."""
    return f"{style_rules()}\n{files('viz').joinpath('style.css').read_text(encoding='utf-8').strip()}"
