"""Names in recipes that stand for a model which the reader must put in, and the preset that the words beside may mean.

Such as `/path/to/model`, `<path_to_config>`, or a sentence that says where to look. Also names of models that were
trained from another one, which they have in their own name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from simcore.models.names import find, names_of, presets

__all__ = ["is_placeholder", "likely", "meant"]

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

_WORDS: Final = re.compile(r"[a-z]+|\d+(?:\.\d+)?[bm]?(?![a-z])|\d+(?:\.\d+)?")
_SIZE: Final = re.compile(r"\d+(?:\.\d+)?[bm]")
_KINDS: Final = (
    "vl vision vlm omni audio asr tts speech moe hybrid mamba eagle eagle3 medusa draft embedding embed reranker "
    "gptq awq bnb gguf mlx int fp mxfp nvfp quantized quant bit 4bit 8bit w4a16 w8a8 exl marlin hqq adapter lora qlora "
    "merged pruned prune upscaled frankenmerge")
"""Words of models with other layers, sizes or formats than the one that they are named after."""


def is_placeholder(reference: str) -> bool:
    """True if a model's name in a recipe stands for one that the reader must put in."""
    return _STANDS.fullmatch(reference.strip()) is not None


def meant(*texts: str) -> str:
    """Name of the model that texts such as a recipe's path have, the longest first; "" if none."""
    words = [_squashed(text) for text in texts]
    if any(other in text for text in words for other in _OTHER):
        return ""
    return next((preset for name, preset in _known() if any(name in text for text in words)), "")


def likely(reference: str) -> str:
    """Preset whose name is part of another model's name; "" if there is none.

    Its family, version and size stand in the name, in this order, family and version side by side. "" if none does, or
    more than one, or if the name has a word of other layers or formats: then it is asked for.
    """
    if find(reference) is not None:
        return ""
    words = _parted(reference.rstrip("/").rpartition("/")[2])
    fits = [(len(name), preset, name) for name, preset in _sized() if _stands_in(name, words)]
    most = max((one[0] for one in fits), default=0)
    best = {preset: name for size, preset, name in fits if size == most}
    if len(best) != 1:
        return ""
    (preset, name), = best.items()
    return "" if {*_KINDS.split()} & {*words} - {*name} else preset


def _stands_in(name: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """True if all words of a name stand among others in their order, the first two side by side."""
    for start in (at for at in range(len(words) - 1) if words[at:at + 2] == name[:2]):
        rest = iter(words[start + 2:])
        if all(word in rest for word in name[2:]):
            return True
    return False


def _parted(text: str) -> tuple[str, ...]:
    return tuple(_WORDS.findall(text.casefold()))


@lru_cache(maxsize=1)
def _sized() -> tuple[tuple[tuple[str, ...], str], ...]:
    """(words, preset) of all names with a family, a version and a size."""
    found = {(_parted(name.rpartition("/")[2]), preset) for preset in presets() for name in names_of(preset)}
    return tuple(sorted((words, preset) for words, preset in found if any(map(_SIZE.fullmatch, words))))


def _squashed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


@lru_cache(maxsize=1)
def _known() -> tuple[tuple[str, str], ...]:
    """(name without marks, preset), the longest names first."""
    found = {_squashed(name.rpartition("/")[2]): preset for preset in presets() for name in names_of(preset)}
    found = {name: preset for name, preset in found.items() if len(name) >= _LEAST}
    found |= {_squashed(name): preset for name, preset in _SHORT.items()}
    return tuple(sorted(found.items(), key=lambda one: (-len(one[0]), one[0])))
