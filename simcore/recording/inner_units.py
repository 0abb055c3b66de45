"""Modules with parameters in fp32 that are data-parallel units inside a layer, and the marks around them.

A layer with one such module tells it by the name ""; DeepSeek-V4's has several (nemo-automodel 0.7.0
`components/models/deepseek_v4/fsdp.py`, _DSV4_FP32_MODULE_SUFFIXES).
"""

from __future__ import annotations

from typing import Final

from simcore.recording.rows import FP32_FORWARD_BEGIN

__all__ = ["FP32_MODULES", "Marks", "ends_backward", "marks_of", "module_of"]

Marks = tuple[int, int, int, int]
"""Marks at the begin and end of a unit's forward, then of its backward."""
_COMPRESSED: Final = "self_attn.compressor"
FP32_MODULES: Final = (
    "", "attn_hc", "ffn_hc", "self_attn.sinks_param", "model.hc_head",
    *(f"{at}.{name}" for at in (_COMPRESSED, f"{_COMPRESSED}.indexer") for name in ("wkv", "wgate", "ape_param")))
"""Paths of such modules, within their layer, or of those around layers within the model."""
_FURTHER: Final = 64
"""First mark of those behind the one named ""."""


def marks_of(module: str) -> Marks:
    """The four marks of the module at a path. Raises ValueError for one that is no unit."""
    place = FP32_MODULES.index(module)
    first = _FURTHER + 4 * place if place else FP32_FORWARD_BEGIN
    return first, first + 1, first + 2, first + 3


_MODULES: Final = {mark: module for module in FP32_MODULES for mark in marks_of(module)}


def module_of(mark: int) -> str | None:
    """Path of the module around which a mark stands; None for a mark of something else."""
    return _MODULES.get(mark)


def ends_backward(mark: int) -> bool:
    """True for the last mark of such a module."""
    module = module_of(mark)
    return module is not None and mark == marks_of(module)[-1]
