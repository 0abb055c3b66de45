"""Tensors that parameters of towers are made of: weights of linears, linears, norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.models.tensor import TensorSpec, linear_weight

__all__ = ["PROJECTOR", "SOUND", "TOWER", "linear", "norm", "norm_weight", "weight"]

TOWER: Final = "vision_tower"
PROJECTOR: Final = "projector"
SOUND: Final = "sound_tower"
"""Components of parameters."""
Size = tuple[int, str]
"""Length and name of a dimension."""


def weight(name: str, out: Size, into: Size, component: str = TOWER) -> TensorSpec:
    """Weight [out, into] of a linear `name`."""
    return linear_weight(name, out, into, component)


def linear(name: str, out: Size, into: Size, component: str = TOWER, *, bias: bool = True) -> Iterator[TensorSpec]:
    """Weight and bias of a linear `name`."""
    yield weight(name, out, into, component)
    if bias:
        yield TensorSpec(f"{name}.bias", out[:1], out[1:], component, "bias")


def norm_weight(name: str, size: Size, component: str = TOWER) -> TensorSpec:
    """Weight of a norm `name`, which is all that an RMSNorm has."""
    return TensorSpec(f"{name}.weight", size[:1], size[1:], component, "norm")


def norm(name: str, size: Size, component: str = TOWER) -> Iterator[TensorSpec]:
    """Weight and bias of a LayerNorm `name`."""
    yield norm_weight(name, size, component)
    yield TensorSpec(f"{name}.bias", size[:1], size[1:], component, "norm")
