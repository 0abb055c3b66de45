"""Buffers of LoRA serving: `max_loras` adapters of one LoRA rank, for every linear of the model.

vLLM 0.12.0 `lora/utils.py` get_supported_lora_modules (all linear layers, embedding, head, fused experts),
`lora/layers/base_linear.py`, `column_parallel_linear.py`, `fused_moe.py`, `vocal_parallel_embedding.py`,
`logits_processor.py`: zeros of [max_loras, 1, rank, in] and [max_loras, 1, out, rank] for every slice; the input side
is unsharded where the layer's input is, for any tp, and vocabularies are never sharded. The buffers are allocated
whether an adapter is loaded or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.models.blocks import Embedding, Head
from simcore.models.config import Architecture
from simcore.vllm.quantized.linears import Linear, linears
from simcore.vllm.weights import layers_of

__all__ = ["adapter_elements"]

_SLICES_OF_EXPERTS: Final = 2
"""w1 and w3, whether experts are gated or not (`FusedMoEWithLoRA._w13_slices`)."""


def adapter_elements(architecture: Architecture, tp: int, rank: int) -> int:
    """Elements of the buffers that vLLM allocates for one LoRA adapter on a tensor-parallel rank.

    `rank`: the LoRA rank; elements are in the model's dtype. Multiply by `max_loras` for the buffers of all adapters.
    """
    return sum(_of(linear, rank) for linear in _all(architecture, tp)) + rank * _ends(architecture)


def _all(architecture: Architecture, tp: int) -> Iterator[Linear]:
    return (linear for _, kind in layers_of(architecture) for branch in kind.branches for linear in linears(branch, tp))


def _of(linear: Linear, rank: int) -> int:
    if linear.name == "w13":
        ffn = linear.outputs // linear.slices
        return linear.copies * rank * _SLICES_OF_EXPERTS * (linear.inputs + ffn)
    return linear.copies * rank * (linear.slices * linear.inputs + linear.outputs)


def _ends(architecture: Architecture) -> int:
    """Elements per LoRA rank of the embedding's and the head's pairs."""
    rows = {Embedding: architecture.vocab + architecture.hidden, Head: architecture.hidden + architecture.vocab}
    return sum(rows.get(type(kind.block), 0) for _, kind in layers_of(architecture))
