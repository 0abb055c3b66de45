"""Names in recipes that stand for a model which the reader must put in, and the preset that the words beside may mean.

Such as `/path/to/model`, `<path_to_config>`, or a sentence that says where to look.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from simcore.models.names import names_of, presets

__all__ = ["is_placeholder", "meant"]

_STANDS: Final = re.compile(r"(.*/)?path[/_-]to[/_-].*|.*<[^>]*>.*|\S+(\s+\S+){3,}|"
                            r"(model|checkpoint|ckpt)_?(path|dir|name)", re.IGNORECASE | re.DOTALL)
"""Paths of no file, words in angle brackets, sentences, and names of variables without their mark."""
_LEAST: Final = 7
"""Letters and digits from which on a name in a text is no chance."""
_SHORT: Final = {"dsv3": "deepseek-v3", "docs/guides/deepseek.md": "deepseek-v3", "nanov3": "nemotron-3-nano-30b-a3b",
                 "nemotron-3-super": "nemotron-3-super-120b-a12b",
                 "nemotron-3-ultra": "nemotron-3-ultra-550b-a55b",
                 "qwen3-30ba3b-thinking": "Qwen/Qwen3-30B-A3B-Thinking-2507"}
"""Words of recipes for models: NeMo RL 7ea279ab docs/guides/deepseek.md, README.md; verl's dsv3."""
_OTHER: Final = ("omni", "v32")
"""Words of models that are no preset, whose names begin like one."""


def is_placeholder(reference: str) -> bool:
    """True if a model's name in a recipe stands for one that the reader must put in."""
    return _STANDS.fullmatch(reference.strip()) is not None


def meant(*texts: str) -> str:
    """Name of the model that texts such as a recipe's path have, the longest first; "" if none."""
    words = [_squashed(text) for text in texts]
    if any(other in text for text in words for other in _OTHER):
        return ""
    return next((preset for name, preset in _known() if any(name in text for text in words)), "")


def _squashed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


@lru_cache(maxsize=1)
def _known() -> tuple[tuple[str, str], ...]:
    """(name without marks, preset), the longest names first."""
    found = {_squashed(name.rpartition("/")[2]): preset for preset in presets() for name in names_of(preset)}
    found = {name: preset for name, preset in found.items() if len(name) >= _LEAST}
    found |= {_squashed(name): preset for name, preset in _SHORT.items()}
    return tuple(sorted(found.items(), key=lambda one: (-len(one[0]), one[0])))
