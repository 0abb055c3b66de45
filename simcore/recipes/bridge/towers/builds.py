"""Models with a vision tower that Megatron-Bridge builds in another way than transformers does.

Megatron-Bridge 067f987d `models/ministral3/ministral3_bridge.py`: weights in fp8 are widened when they are read
(maybe_dequantize_fp8), so that Ministral 3's instruct models are those in bf16; head and embedding share a weight if
`text_config` says so (:84), whatever the model's own configuration says or leaves out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from simcore.models.graph import architecture_of, model_config
from simcore.models.names import find
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Taken

__all__ = ["in_16_bits", "write_own_head"]

_IN_FP8: Final = re.compile(r"mistralai/Ministral-3-\d+B-Instruct-2512")
_HEAD: Final = "Bridge 067f987d models/ministral3/ministral3_bridge.py:84"


def in_16_bits(name: Taken[str]) -> Taken[str]:
    """The model whose weights are those that Bridge reads: the same, or its copy in bf16."""
    return replace(name, value=f"{name.value}-BF16") if _IN_FP8.fullmatch(name.value) else name


def write_own_head(draft: Draft, name: Taken[str]) -> bool:
    """Writes a head with weights of its own, where transformers shares the embedding's and Bridge does not.

    Returns True if it is written.
    """
    config = model_config(name.value, None, "") if find(name.value) is not None else {}
    shares = config.get("text_config", {}).get("tie_word_embeddings", False)
    if config.get("model_type") != "mistral3" or shares or not architecture_of(config).tied:
        return False
    draft.infer("model.config", name.value, "the model by its name", name)
    draft.infer("model.overrides.tie_word_embeddings", False, "text_config does not share them",  # noqa: FBT003
                name, source=_HEAD)
    return True
