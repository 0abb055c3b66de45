"""Parameters that torchtitan 0.2.2 registers (`models/*/model/model.py`), in the order of registration."""

from __future__ import annotations

from simcore.models.blocks import Attention, LayerKind, Mlp
from simcore.operators.plain_tensors import around, linear, norm
from simcore.tensor import TensorSpec

__all__ = ["tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters of `kind`; names are relative to the layer. Norms are made after attention and MLP."""
    parts = around(kind)
    if parts is not None:
        return parts
    found: list[TensorSpec] = []
    for branch in kind.branches:
        if isinstance(branch.block, Attention):
            found += _attention(branch.block)
        elif isinstance(branch.block, Mlp):
            found += _mlp(branch.block)
    norms = [norm(f"{name}.weight", kind.hidden) for name in ("attention_norm", "ffn_norm")] if kind.branches else []
    return (*found, *norms)


def _attention(b: Attention) -> list[TensorSpec]:
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "kv_heads")
    parts = (("wq", q, hidden), ("wk", kv, hidden), ("wv", kv, hidden), ("wo", hidden, q))
    norms = [TensorSpec(f"attention.{name}.weight", (b.head_dim,), ("head_dim",), "attention", "norm")
             for name in ("q_norm", "k_norm") if b.qk_norm]
    return [*norms, *(linear(f"attention.{name}", out, into, "attention") for name, out, into in parts)]


def _mlp(b: Mlp) -> list[TensorSpec]:
    hidden, ffn = (b.hidden, "hidden"), (b.ffn, "ffn")
    return [linear(f"feed_forward.{name}", out, into, "mlp")
            for name, out, into in (("w1", ffn, hidden), ("w2", hidden, ffn), ("w3", ffn, hidden))]
