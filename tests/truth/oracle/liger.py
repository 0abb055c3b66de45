"""Liger's kernels (0.7.0) put into a model of transformers, as `_apply_liger_kernel_to_instance` does it.

Or into the classes of its family before it is made, as LLaMA-Factory and axolotl do. Stand-in: launches of Triton's
kernels, which allocate nothing, do nothing; the Python around them is Liger's.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import sys
import types
from typing import Any

from torch import nn

from .launch import Launch

GATED = ("swiglu", "geglu")


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


def import_all() -> None:
    """Imports Liger, so that processes that are forked find it there."""
    stub_triton()
    importlib.import_module("liger_kernel.transformers.monkey_patch")


def put_into(model: nn.Module, **kernels: bool) -> None:
    """Norms, rotation and SwiGLU of an instance, or what `kernels` names; without them the loss is the caller's."""
    stub_triton()
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=model, **{"fused_linear_cross_entropy": False} | kernels)


def put_into_classes(family: str, rope: bool, rms_norm: bool, gated: bool, loss: bool) -> None:
    """The kernels of a family's classes, from which models are made afterwards (axolotl 067b021c
    `integrations/liger/plugin.py`, pre_model_load)."""
    stub_triton()
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    apply = MODEL_TYPE_TO_APPLY_LIGER_FN[family]
    asked = {"rope": rope, "rms_norm": rms_norm, "fused_linear_cross_entropy": loss, "cross_entropy": False}
    asked |= dict.fromkeys(GATED, gated)
    known = inspect.signature(apply).parameters
    apply(**{name: value for name, value in asked.items() if name in known})
