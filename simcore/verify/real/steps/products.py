"""Products of matrices in 16 bits as zeros of the product's shape, where no value is read.

Processors without AVX-512 multiply bf16 by rows in a loop, at 0.2 GFLOP/s: a pass of one billion weights takes minutes.
Sizes, places and lifetimes of tensors, which are compared, do not depend on values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Zeros"]

_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


class Zeros(TorchDispatchMode):
    """Mode under which products in bf16 are zeros. What notes allocations is entered inside of it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and args[-1].dtype == torch.bfloat16:
            left, right = args[-2:]
            return left.new_zeros((*left.shape[:-1], right.shape[-1]))
        return func(*args, **(kwargs or {}))
