"""axolotl 067b021c `loaders/model.py`, _convert_embedding_modules_dtype: what it casts back behind PEFT."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["cast_back"]

_TABLES = ("embed_tokens", "lm_head")


def cast_back(model: Any) -> None:
    """Casts modules with `norm` in their name, and tables of tokens, to bf16."""
    for name, module in model.named_modules():
        has_weight = "weight" in dict(module.named_parameters(recurse=False))
        if "norm" in name or (has_weight and any(table in name for table in _TABLES)):
            module.to(torch.bfloat16)
