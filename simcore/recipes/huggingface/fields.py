"""Keys that recipes of transformers' Trainer and of programs around it may have, by format.

`fields.json` is made by `tests/truth/list_trainer_fields.py` from the sources of TRL f2cd5771, LLaMA-Factory ff6d4d12
and axolotl 067b021c with its plugins; recipes of TRL have the arguments of transformers 5.23.0 too, those of
LLaMA-Factory those of 4.46.3 as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

__all__ = ["fields_of"]


def fields_of(format_name: str) -> frozenset[str]:
    """Keys at the top of recipes of a format: trl, llamafactory, axolotl."""
    return _fields()[format_name]


@lru_cache
def _fields() -> Mapping[str, frozenset[str]]:
    text = resources.files("simcore.recipes.huggingface").joinpath("fields.json").read_text(encoding="utf-8")
    return MappingProxyType({name: frozenset(keys) for name, keys in json.loads(text).items()})
