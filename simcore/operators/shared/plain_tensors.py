"""Tensors that eager models register alike: embedding, norms, linears, head."""

from __future__ import annotations

from simcore.models.blocks import Embedding, FinalNorm, Head, LayerKind
from simcore.models.tensor import TensorSpec

__all__ = ["around", "linear", "norm"]


def around(kind: LayerKind) -> tuple[TensorSpec, ...] | None:
    """Parameters of a part around the layers; None for a layer, and for a part that has none of these."""
    block = kind.block
    if isinstance(block, Embedding):
        return (TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), "embedding", "embedding"),)
    if isinstance(block, FinalNorm):
        return (norm("weight", block.hidden),)
    if isinstance(block, Head):
        component = "embedding" if block.tied else "lm_head"
        return (TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), component, "linear"),)
    return None


def norm(name: str, size: int) -> TensorSpec:
    """The weight of an RMSNorm."""
    return TensorSpec(name, (size,), ("hidden",), "norms", "norm")


def linear(name: str, out: tuple[int, str], into: tuple[int, str], component: str, copies: int = 1) -> TensorSpec:
    """The weight of a linear without bias; `out`, `into`: size and name of a dimension."""
    return TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear", copies=copies)
