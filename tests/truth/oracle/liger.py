"""Liger's kernels (0.7.0) put into a model of transformers, as `_apply_liger_kernel_to_instance` does it.

Stand-in: launches of Triton's kernels, which allocate nothing, do nothing; the Python around them is Liger's.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

from torch import nn

from .launch import Launch


class _Anything(types.ModuleType):
    """A module in which every name is a kernel that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Launch


def stub_triton() -> None:
    """Modules under the names that Liger imports."""
    for name in ("triton", "triton.language", "triton.language.math", "triton.language.extra",
                 "triton.language.extra.libdevice", "triton.language.extra.cuda", "triton.runtime"):
        module = _Anything(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
    triton: Any = sys.modules["triton"]
    triton.__version__ = "3.7.0"
    triton.language = sys.modules["triton.language"]
    triton.language.constexpr = lambda value: types.SimpleNamespace(value=value)
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()


def put_into(model: nn.Module) -> None:
    """Norms, rotation and SwiGLU of an instance; the loss is the caller's."""
    stub_triton()
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=False)
