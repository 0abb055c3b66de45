"""Parameters that KempnerForge 5666d0d16153 registers (`model/transformer.py`), in the order of registration.

Experts are a module each with three matrices; `moe_packed_experts` stacks those of one name into one parameter, whose
first dimension counts experts.
"""

from __future__ import annotations

from simcore.models.blocks import Attention, Embedding, FinalNorm, Head, LayerKind, Mixer, Mlp, Moe
from simcore.tensor import TensorSpec

__all__ = ["tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters of `kind`; names are relative to the layer."""
    block = kind.block
    if isinstance(block, Embedding):
        return (TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), "embedding", "embedding"),)
    if isinstance(block, FinalNorm):
        return (_norm("weight", block.hidden),)
    if isinstance(block, Head):
        component = "embedding" if block.tied else "lm_head"
        return (TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), component, "linear"),)
    found: list[TensorSpec] = []
    for name, branch in zip(("attention", "mlp"), kind.branches, strict=False):
        found += [_norm(f"{name}_norm.weight", kind.hidden), *_mixer(branch.block)]
    return tuple(found)


def _norm(name: str, size: int) -> TensorSpec:
    return TensorSpec(name, (size,), ("hidden",), "norms", "norm")


def _linear(name: str, out: tuple[int, str], into: tuple[int, str], component: str, copies: int = 1) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear", copies=copies)


def _mixer(block: Mixer) -> list[TensorSpec]:
    if isinstance(block, Attention):
        return _attention(block)
    if isinstance(block, Mlp):
        return _swiglu("mlp", block.hidden, (block.ffn, "ffn"), "mlp")
    if not isinstance(block, Moe):  # refused when it is to run
        return []
    router = _linear("mlp.router.gate", (block.num_experts, "experts"), (block.hidden, "hidden"), "router")
    return [router, *_swiglu("mlp.experts", block.hidden, (block.expert_ffn, "expert_ffn"), "routed_experts",
                             block.num_experts)]


def _attention(b: Attention) -> list[TensorSpec]:
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "kv_heads")
    parts = (("q_proj", q, hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden), ("o_proj", hidden, q))
    return [_linear(f"attention.{name}", out, into, "attention") for name, out, into in parts]


def _swiglu(prefix: str, size: int, ffn: tuple[int, str], component: str, copies: int = 1) -> list[TensorSpec]:
    hidden = (size, "hidden")
    parts = (("gate_proj", ffn, hidden), ("up_proj", ffn, hidden), ("down_proj", hidden, ffn))
    return [_linear(f"{prefix}.{name}", out, into, component, copies) for name, out, into in parts]
