"""Parameters that KempnerForge 5666d0d16153 registers (`model/transformer.py`), in the order of registration.

Each expert is a module with three matrices; `moe_packed_experts` stacks those of one name into one parameter, whose
first dimension counts experts.
"""

from __future__ import annotations

from simcore.models.blocks import Attention, LayerKind, Mixer, Mlp, Moe
from simcore.models.tensor import TensorSpec
from simcore.operators.shared.plain_tensors import around, linear, norm

__all__ = ["tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters of a layer or part, in registration order; names are relative to it, () for the loss."""
    parts = around(kind)
    if parts is not None:
        return parts
    found: list[TensorSpec] = []
    for name, branch in zip(("attention", "mlp"), kind.branches, strict=False):
        found += [norm(f"{name}_norm.weight", kind.hidden), *_mixer(branch.block)]
    return tuple(found)


def _mixer(block: Mixer) -> list[TensorSpec]:
    if isinstance(block, Attention):
        return _attention(block)
    if isinstance(block, Mlp):
        return _swiglu("mlp", block.hidden, (block.ffn, "ffn"), "mlp")
    if not isinstance(block, Moe):  # refused when it is to run
        return []
    router = linear("mlp.router.gate", (block.num_experts, "experts"), (block.hidden, "hidden"), "router")
    return [router, *_swiglu("mlp.experts", block.hidden, (block.expert_ffn, "expert_ffn"), "routed_experts",
                             block.num_experts)]


def _attention(b: Attention) -> list[TensorSpec]:
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "kv_heads")
    parts = (("q_proj", q, hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden), ("o_proj", hidden, q))
    return [linear(f"attention.{name}", out, into, "attention") for name, out, into in parts]


def _swiglu(prefix: str, size: int, ffn: tuple[int, str], component: str, copies: int = 1) -> list[TensorSpec]:
    hidden = (size, "hidden")
    parts = (("gate_proj", ffn, hidden), ("up_proj", ffn, hidden), ("down_proj", hidden, ffn))
    return [linear(f"{prefix}.{name}", out, into, component, copies) for name, out, into in parts]
