"""Parameters and buffers that transformers 5.23 registers, in the order in which FSDP2 meets them.

A module's own parameters come before its children's (`nn.Module.named_parameters`), names are relative to the layer.
Expert weights are one 3-D parameter each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from simcore.models.blocks import Attention, Embedding, FinalNorm, Head, LayerKind, Mamba2, Mlp, Moe
from simcore.tensor import TensorSpec

__all__ = ["tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters and buffers of `kind` in registration order."""
    block = kind.block
    if isinstance(block, Embedding):
        return (TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), "embedding", "embedding"),)
    if isinstance(block, FinalNorm):
        return (_norm("weight", block.hidden),)
    if isinstance(block, Head):
        component = "embedding" if block.tied else "lm_head"
        return (TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), component, "linear"),)
    if block is not None:
        return ()  # the loss
    norms = [_norm(f"{branch.norm}.weight", kind.hidden) for branch in kind.branches]
    blocks = [spec for b in kind.branches for spec in _BLOCK[type(b.block)](b.name, b.block)]
    # Llama makes its norms after attention and MLP, Nemotron-H before the mixer.
    return tuple([*norms, *blocks] if kind.family == "nemotron_h" else [*blocks, *norms])


def _norm(name: str, size: int) -> TensorSpec:
    return TensorSpec(name, (size,), ("hidden",), "norms", "norm")


def _linear(name: str, out: tuple[int, str], into: tuple[int, str], component: str) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear")


def _attention(name: str, b: Any) -> Iterable[TensorSpec]:
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "kv_heads")
    for part, out, into in (("q_proj", q, hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden),
                            ("o_proj", hidden, q)):
        yield _linear(f"{name}.{part}", out, into, "attention")


def _mlp(name: str, b: Any, component: str = "mlp") -> Iterable[TensorSpec]:
    hidden, ffn = (b.hidden, "hidden"), (b.ffn, "ffn")
    if b.gated:
        yield _linear(f"{name}.gate_proj", ffn, hidden, component)
    yield _linear(f"{name}.up_proj", ffn, hidden, component)
    yield _linear(f"{name}.down_proj", hidden, ffn, component)


def _mamba(name: str, b: Any) -> Iterable[TensorSpec]:
    for part in ("dt_bias", "A_log", "D"):
        yield TensorSpec(f"{name}.{part}", (b.num_heads,), ("mamba_heads",), "mamba")
    yield TensorSpec(f"{name}.conv1d.weight", (b.conv_dim, 1, b.conv_kernel), ("mamba_conv", "one", "kernel"), "mamba",
                     "conv")
    yield TensorSpec(f"{name}.conv1d.bias", (b.conv_dim,), ("mamba_conv",), "mamba", "conv")
    yield _linear(f"{name}.in_proj", (b.in_proj, "mamba_in"), (b.hidden, "hidden"), "mamba")
    yield TensorSpec(f"{name}.norm.weight", (b.inner,), ("mamba_inner",), "mamba", "norm")
    yield _linear(f"{name}.out_proj", (b.hidden, "hidden"), (b.inner, "mamba_inner"), "mamba")


def _moe(name: str, b: Any) -> Iterable[TensorSpec]:
    for part, shape, dims in (("up_proj", (b.expert_ffn, b.hidden), ("expert_ffn", "hidden")),
                              ("down_proj", (b.hidden, b.expert_ffn), ("hidden", "expert_ffn"))):
        yield TensorSpec(f"{name}.experts.{part}", (b.num_experts, *shape), ("experts", *dims), "routed_experts",
                         "grouped")
    yield TensorSpec(f"{name}.gate.weight", (b.num_experts, b.hidden), ("experts_router", "hidden"), "router", "router")
    yield TensorSpec(f"{name}.gate.e_score_correction_bias", (b.num_experts,), ("experts_router",), "router", "router",
                     "fp32", is_buffer=True, trainable=False)
    if b.shared_ffn:
        yield from _mlp(f"{name}.shared_experts", Mlp(b.hidden, b.shared_ffn, gated=b.gated), "shared_experts")


_BLOCK: Final[dict[type, Callable[[str, Any], Iterable[TensorSpec]]]] = {
    Mamba2: _mamba, Attention: _attention, Mlp: _mlp, Moe: _moe
}
