"""One tensor that a layer of vLLM holds, and what a method of quantisation says about a linear layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from simcore.units import dtype_bytes
from simcore.vllm.quantized.linears import Linear

__all__ = ["TAKEN", "UNGATED", "Gpu", "Method", "Tensor", "named", "num_bytes"]


TAKEN: Final = ("", "")
"""Answer of a method that refuses nothing."""
UNGATED: Final = ("routed experts without a gate", "vLLM 0.12.0 fused_moe/layer.py: is_act_and_mul=False is supported "
                  "only for unquantized, ModelOpt FP8, and ModelOpt NvFp4 checkpoints")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: name in its module ("weight_scale"), shape, format such as "fp8" or "int32".

    `behind`: elements of the storage that it is a view of; 0: its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    behind: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of its storage."""
        return (self.behind or math.prod(self.shape)) * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Properties of a GPU that choose kernels: compute capability, such as (9, 0), and number of multiprocessors."""

    capability: tuple[int, int]
    sms: int


class Method(Protocol):
    """Method of quantisation of one engine on one kind of GPU."""

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """Tensors that `create_weights` registers, which the checkpoint's files fill."""
        ...

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """Tensors that are left after `process_weights_after_loading`, which every step reads."""
        ...

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """Pair (message, vLLM's rule) for a layer that the method refuses; TAKEN if it takes it.

        Without a rule vLLM takes it, by kernels that are not modelled.
        """
        ...


def named(linear: Linear, *rows: tuple[str, tuple[int, ...], str]) -> tuple[Tensor, ...]:
    """Tensors of a linear from rows (name, shape, format); those of routed experts have one more dimension in front.

    Experts' names begin with the name of the matrix, such as `w13_weight`.
    """
    if not linear.is_experts:
        return tuple(Tensor(*row) for row in rows)
    return tuple(Tensor(f"{linear.name}_{name}", (linear.copies, *shape), dtype) for name, shape, dtype in rows)


def num_bytes(tensors: tuple[Tensor, ...]) -> int:
    """Bytes of all of them."""
    return sum(tensor.num_bytes for tensor in tensors)
