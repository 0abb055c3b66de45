"""Parameters that torchtitan 0.2.2 registers (`models/*/model/model.py`), in the order of registration."""

from __future__ import annotations

from dataclasses import replace

from simcore.models.blocks import Attention, LatentAttention, LayerKind, Mixer, Mlp, Moe
from simcore.models.tensor import TensorSpec
from simcore.operators.shared.plain_tensors import around, linear, norm

__all__ = ["tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters and buffers of a layer or part, in registration order; names are relative to it.

    () for the loss. Norms are made after attention and MLP, in DeepSeek V3 and GPT-OSS between them.
    """
    parts = around(kind)
    if parts is not None:
        return parts
    norms = [norm(f"{name}.weight", kind.hidden) for name in ("attention_norm", "ffn_norm")] if kind.branches else []
    mixers, blocks = ([spec for branch in kind.branches if isinstance(branch.block, types) is is_mixer
                       for spec in _block(branch.block)] for types, is_mixer in ((MIXERS, True), (MIXERS, False)))
    if kind.family == "gpt_oss":  # models/gpt_oss/model/model.py: each TransformerBlock is made in bf16
        return tuple(replace(spec, stored=spec.stored or "bf16") for spec in (*mixers, *norms, *blocks))
    if any(isinstance(branch.block, LatentAttention) for branch in kind.branches):
        return (*mixers, *norms, *blocks)
    return (*mixers, *blocks, *norms)


MIXERS = (Attention, LatentAttention)


def _block(block: Mixer) -> list[TensorSpec]:
    if isinstance(block, Attention):
        return _attention(block)
    if isinstance(block, LatentAttention):
        return _latent(block)
    if isinstance(block, Mlp):
        return _mlp("feed_forward", (block.hidden, "hidden"), (block.ffn, "ffn"), "mlp")
    return _moe(block) if isinstance(block, Moe) and block.gated else []  # others are refused when they are to run


def _attention(b: Attention) -> list[TensorSpec]:
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "kv_heads")
    parts = (("wq", q, hidden), ("wk", kv, hidden), ("wv", kv, hidden), ("wo", hidden, q))
    norms = [TensorSpec(f"attention.{name}.weight", (b.head_dim,), ("head_dim",), "attention", "norm")
             for name in ("q_norm", "k_norm") if b.qk_norm]
    linears = [spec for name, out, into in parts for spec in (
        linear(f"attention.{name}", out, into, "attention"),
        *([TensorSpec(f"attention.{name}.bias", out[:1], out[1:], "attention", "bias")] if b.bias else []))]
    sinks = [TensorSpec("attention.sinks", (b.num_heads,), ("heads",), "attention")] if b.sinks else []
    return [*sinks, *norms, *linears]


def _latent(b: LatentAttention) -> list[TensorSpec]:
    """`models/deepseek_v3`: the query is compressed where `q_lora_rank` is not 0."""
    hidden, q, rank = (b.hidden, "hidden"), (b.q_size, "heads"), (b.q_rank, "q_rank")
    query = [linear("attention.wq", q, hidden, "attention")] if not b.q_rank else [
        linear("attention.wq_a", rank, hidden, "attention"), norm("attention.q_norm.weight", b.q_rank),
        linear("attention.wq_b", q, rank, "attention")]
    latent = (b.kv_rank, "kv_rank")
    return [*query, linear("attention.wkv_a", (b.kv_rank + b.rope, "kv_rank"), hidden, "attention"),
            norm("attention.kv_norm.weight", b.kv_rank),
            linear("attention.wkv_b", (b.kv_size, "heads"), latent, "attention"),
            linear("attention.wo", hidden, (b.out_size, "heads"), "attention")]


def _moe(b: Moe) -> list[TensorSpec]:
    """`models/moe/moe.py`: experts of one name are one parameter; the bias of the choice and the counts are buffers."""
    hidden, ffn = (b.hidden, "hidden"), (b.expert_ffn, "expert_ffn")
    named = [("w1", ffn, hidden), ("w2", hidden, ffn), ("w3", ffn, hidden)]
    if b.bias:
        named = [("mlp1_weight", (2 * b.expert_ffn, "expert_ffn"), hidden), ("mlp2_weight", hidden, ffn)]
    experts = [TensorSpec(f"moe.experts.{name}", (b.num_experts, out[0], into[0]), ("experts", out[1], into[1]),
                          "routed_experts", "grouped") for name, out, into in named]
    if b.bias:
        experts = [spec for weight in experts for spec in (weight, TensorSpec(
            weight.name.replace("weight", "bias"), weight.shape[:2], weight.dims[:2], "routed_experts", "bias"))]
    router = TensorSpec("moe.router.gate.weight", (b.num_experts, b.hidden), ("experts_router", "hidden"), "router",
                        "router")
    bias = [TensorSpec("moe.router.gate.bias", (b.num_experts,), ("experts_router",), "router", "bias")] * b.bias
    shared = _mlp("moe.shared_experts", hidden, (b.shared_ffn, "ffn"), "shared_experts") if b.shared_ffn else []
    buffers = [TensorSpec(f"moe.{name}", (b.num_experts,), ("experts_router",), "router", "router", "fp32",
                          is_buffer=True, trainable=False) for name in ("expert_bias", "tokens_per_expert")]
    return [*experts, router, *bias, *shared, *buffers]


def _mlp(name: str, hidden: tuple[int, str], ffn: tuple[int, str], component: str) -> list[TensorSpec]:
    return [linear(f"{name}.{part}", out, into, component)
            for part, out, into in (("w1", ffn, hidden), ("w2", hidden, ffn), ("w3", ffn, hidden))]
