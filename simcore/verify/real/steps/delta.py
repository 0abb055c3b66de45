"""Kernels of the gated delta rule where transformers looks for them: flash-linear-attention and causal-conv1d.

Stand-ins: launches of Triton's kernels, which allocate nothing, do nothing; the Python around them is fla-core's own
(0.6.0). causal-conv1d cannot be built without CUDA: `Convolution` allocates what its 1.6.1 does
(`causal_conv1d_interface.py`, `cpp_functions.py`), transcribed from its source and not measured.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

import torch

FAMILIES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def put_in_place() -> None:
    """Has to come before the modelling code is imported, which decides then what it calls."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    for launcher in (JITFunction, Autotuner, Heuristics):
        launcher.run = _nothing
    from fla.utils import hardware

    hardware.check_shared_mem = lambda *_: True  # before it is imported by name: that of an H100
    module = types.ModuleType("causal_conv1d")
    module.__spec__ = importlib.machinery.ModuleSpec("causal_conv1d", None)
    module.causal_conv1d_fn = convolve  # type: ignore[attr-defined]
    sys.modules["causal_conv1d"] = module


def _nothing(*_: Any, **__: Any) -> None:
    return None


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
             seq_idx: torch.Tensor | None = None, activation: str | None = None) -> torch.Tensor:
    assert bias is None
    assert seq_idx is None
    assert activation == "silu"
    out: torch.Tensor = Convolution.apply(x, weight)
    return out


class Convolution(torch.autograd.Function):
    """A causal convolution of each channel and SiLU, of `x` [batch, channels, seq] whose channels lie together."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert x.stride(1) == 1
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        if grad.stride(1) != 1:
            grad = grad.transpose(-1, -2).contiguous().transpose(-1, -2)
        dx = torch.empty_like(x)
        return dx, torch.zeros_like(weight, dtype=torch.float32).type_as(weight)
