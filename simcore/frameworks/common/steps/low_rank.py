"""Step of GaLore or APOLLO: a loop over tensors in Python, whose variables keep the tensor before.

[Note: GaLore's step] galore-torch 1.0 `adamw.py`, apollo-torch 1.0.3 `apollo.py`, step. Of a tensor that is not
projected the root of its second moment and the update stay until those of the next tensor exist; of one that is, the
projected gradient too, and the update has the size of the whole. APOLLO scales the gradient by norms of its projection,
and once more to limit its growth. Projected weights are the last parameter group (transformers 5.23
`trainer_optimizer.py`, LLaMA-Factory ff6d4d12 `train/trainer_utils.py`). Numbers of one element are left out.

The step that is described makes new projectors, as the first and each `update_proj_gap`-th does. An SVD works on a copy
of its matrix (torch 2.13 `native/cuda/linalg/BatchLinearAlgebraLib.cpp`, cloneBatchedColumnMajor), which is counted;
cuSOLVER's own workspace is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from simcore.frameworks.common.steps.own_step import Updated
from simcore.frameworks.common.steps.projection import Projection, Shape
from simcore.recording.rows import Step

__all__ = ["COPIES", "StepAlone", "held", "held_by", "moved"]

_FP32: Final = 4
COPIES: Final = 1
"""Copies of its matrix that an SVD makes inside its kernel."""


@dataclass(frozen=True, slots=True)
class StepAlone:
    """Step of an optimizer that has one parameter, as layer-wise ones have.

    `size`: bytes of an element of the gradient; `projection`: None for a parameter that is not projected.
    """

    size: int
    projection: Projection | None = None

    def __call__(self, shape: Shape) -> Step:
        """Returns the step of a parameter of `shape`: temporary bytes, FLOPs and bytes moved."""
        tensor = Updated("", shape, self.size, self.size, projection=self.projection)
        return Step(held([tensor]), 12 * math.prod(shape), moved(tensor))


@dataclass(slots=True)
class _Memory:
    """Bytes that are held now, the most so far, and those of each variable of the loop."""

    now: int = 0
    most: int = 0
    variables: dict[str, int] = field(default_factory=dict)

    def take(self, num_bytes: int) -> int:
        """Allocates and returns so many bytes."""
        self.now += num_bytes
        self.most = max(self.most, self.now)
        return num_bytes

    def free(self, *sizes: int) -> None:
        """Frees so many bytes."""
        self.now -= sum(sizes)

    def put(self, name: str, num_bytes: int) -> None:
        """Sets a variable to what was taken already; what it held before is freed."""
        self.free(self.variables.get(name, 0))
        self.variables[name] = num_bytes


def held(tensors: Sequence[Updated]) -> int:
    """Returns the most bytes that a step with new projectors holds at a time, besides states."""
    return held_by(tensors, copies=COPIES, renews=True)


def held_by(tensors: Sequence[Updated], *, copies: int, renews: bool) -> int:
    """Returns the most bytes that a step holds at a time, besides states.

    `copies`: of its matrix that an SVD makes inside its kernel; `renews`: the step makes new projectors.
    """
    memory = _Memory()
    for tensor in sorted(tensors, key=lambda one: one.projection is not None):
        memory.put("grad", 0)
        if tensor.projection is None:
            _take_moments(memory, tensor.grad_size * math.prod(tensor.shape))
            continue
        if renews:
            _renew(memory, tensor, tensor.projection, copies)
        _project(memory, tensor, tensor.projection)
        (_scale if tensor.projection.scales else _project_back)(memory, tensor, tensor.projection)
    return memory.most


def _take_moments(memory: _Memory, num_bytes: int) -> None:
    """Root of the second moment, and the quotient."""
    for name in ("denom", "norm_grad"):
        memory.put(name, memory.take(num_bytes))


def _project(memory: _Memory, tensor: Updated, projection: Projection) -> None:
    """Gradient of low rank, of both sides one after the other, and its moments."""
    low = projection.low(tensor.shape)
    part = memory.take(tensor.grad_size * low[0] * tensor.shape[1] * (projection.way == "full"))
    memory.put("grad", memory.take(tensor.grad_size * math.prod(low)))
    memory.free(part)
    _take_moments(memory, tensor.grad_size * math.prod(low))


def _project_back(memory: _Memory, tensor: Updated, projection: Projection) -> None:
    """Update of the whole size, and its product with the scale."""
    rank = projection.kept_rank(tensor.shape)
    part = memory.take(tensor.grad_size * tensor.shape[0] * rank * (projection.way == "full"))
    whole = memory.take(tensor.grad_size * math.prod(tensor.shape))
    memory.free(part)
    memory.put("norm_grad", memory.take(whole))
    memory.free(whole)


def _scale(memory: _Memory, tensor: Updated, projection: Projection) -> None:
    """Factors from two norms, the scaled gradient, and its quotient by the limiter, which is the update."""
    if projection.scales == "channel":
        rows, columns = tensor.shape
        norm = memory.take(tensor.grad_size * projection.low(tensor.shape)[rows < columns])
        raised = memory.take(norm) + memory.take(norm)
        memory.free(norm)
        memory.put("grad_scaling_factor", memory.take(norm))
        memory.free(raised)
    whole = tensor.grad_size * math.prod(tensor.shape)
    for _ in range(2):
        memory.put("scaled_grad", memory.take(whole))
    memory.put("norm_grad", 0)  # the same tensor from here on


def _renew(memory: _Memory, tensor: Updated, projection: Projection, copies: int) -> None:
    """New projectors beside the old ones, from the gradient in fp32."""
    wide = memory.take(_FP32 * math.prod(tensor.shape) * (tensor.grad_size != _FP32))
    kept = [tensor.grad_size * one for one in projection.matrices(tensor.shape, tensor.grad_size)]
    made = _draw(memory, kept[0] // tensor.grad_size) if projection.is_random else _decompose(
        memory, tensor.shape, projection, copies)
    cast = [memory.take(one * (tensor.grad_size != _FP32)) for one in kept]
    memory.free(wide, made, *cast)


def _draw(memory: _Memory, elements: int) -> int:
    """A drawn matrix, and its quotient, which stays; returns the bytes of that."""
    drawn = memory.take(_FP32 * elements)
    memory.free(memory.take(drawn))
    return drawn


def _decompose(memory: _Memory, shape: Shape, projection: Projection, copies: int) -> int:
    """Factors of an SVD, and the product of singular values with one of them; returns their bytes."""
    short, rank = min(shape), projection.kept_rank(shape)
    factors = sum(memory.take(_FP32 * short * length) for length in (shape[0], 1, shape[1]))
    memory.free(memory.take(_FP32 * math.prod(shape) * copies))
    if projection.way == "full":
        return factors
    diagonal = memory.take(_FP32 * rank * rank)
    product = memory.take(_FP32 * rank * shape[projection.sides(shape) == ("left",)])
    memory.free(diagonal)
    return factors + product


def moved(tensor: Updated) -> int:
    """Returns the bytes that kernels of one operation each read and write in a step without new projectors.

    Of moments 19 passes over what they have, AdamW's last 3 over the parameter. Of a projected matrix the gradient is
    read, GaLore's update written, scaled and added in 6 passes; APOLLO's gradient is scaled, measured, limited and
    multiplied in 11. Projectors are read for each product.
    """
    whole = tensor.grad_size * math.prod(tensor.shape)
    if tensor.projection is None:
        return 20 * whole
    projection = tensor.projection
    low = tensor.grad_size * math.prod(projection.low(tensor.shape))
    read = tensor.grad_size * sum(projection.matrices(tensor.shape, 2))
    return (11 if projection.scales else 6) * whole + 19 * low + (1 if projection.scales else 2) * read
