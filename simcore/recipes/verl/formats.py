"""Words of verl's recipes for formats of numbers (verl b178a3cd `utils/torch_dtypes.py`)."""

from __future__ import annotations

from typing import Final

__all__ = ["FORMATS"]

FORMATS: Final = {word: name for name, words in {"fp32": ("fp32", "float32", "32"), "bf16": ("bf16", "bfloat16"),
                                                 "fp16": ("fp16", "float16", "16")}.items() for word in words}
