"""Tensors that eager models register alike: embedding, norms, linears, head."""

from __future__ import annotations

from simcore.models.blocks import Embedding, FinalNorm, Head, LayerKind
from simcore.models.tensor import TensorSpec

__all__ = ["around", "linear", "norm"]


def around(kind: LayerKind) -> tuple[TensorSpec, ...] | None:
    """The one parameter of an embedding, a final norm or a head; None for a layer and for other parts."""
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
    """Specification of the weight `name`, a vector of `size` elements, of an RMSNorm over the hidden size."""
    return TensorSpec(name, (size,), ("hidden",), "norms", "norm")


def linear(name: str, out: tuple[int, str], into: tuple[int, str], component: str, copies: int = 1) -> TensorSpec:
    """Specification of `{name}.weight`, the matrix of a linear layer without bias.

    `out`, `into`: (size, name) of its output and its input dimension. `copies`: `TensorSpec.copies`.
    """
    return TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear", copies=copies)
