"""Operators that allocate otherwise on a CPU than on CUDA, made to allocate on fake tensors as they do there.

Dropout is `native_dropout`, whose mask has a byte an element (torch 2.13 `aten/src/ATen/native/Dropout.cpp`,
is_fused_kernel_acceptable: CUDA tensors alone), nothing for a probability of 0; LayerNorm's mean and deviation of a row
are in fp32 (`aten/src/ATen/native/cuda/layer_norm_kernel.cu`; a CPU has them in the type of its input).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["put_in_place"]


def put_in_place() -> None:
    """Replaces dropout and the shapes of LayerNorm's results, for this process."""
    op_implementations_dict[torch.ops.aten.native_layer_norm.default] = _layer_norm
    torch.nn.functional.dropout = _dropout


def _dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    assert not inplace
    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


def _layer_norm(mode: FakeTensorMode, _op: Any, x: torch.Tensor, shape: list[int],
                *_: Any) -> tuple[torch.Tensor, ...]:
    rows = (*x.shape[:x.dim() - len(shape)], *[1] * len(shape))
    with mode:
        return torch.empty_like(x), *(torch.empty(rows, dtype=torch.float32) for _ in range(2))
