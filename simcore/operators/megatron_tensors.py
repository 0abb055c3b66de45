"""The parameters and buffers that Megatron-Core registers with the Transformer Engine layer spec.

Order, names and shapes are those of `named_parameters()` of `MambaModel` and `GPTModel` (megatron-core 0.16.1,
`models/mamba/mamba_layer_specs.py`, `models/gpt/gpt_layer_specs.py`), before tensor and expert parallelism split them:

 * a module's own parameters come before its children's, so the mixer starts with dt_bias, A_log, D;
 * `Attention` builds `linear_proj` before `SelfAttention` builds `linear_qkv` (`transformer/attention.py`);
 * TE's `LayerNormLinear` registers `layer_norm_weight` before `weight` (TransformerEngine 2.18,
   `pytorch/module/layernorm_linear.py`).

Main of August 2026 holds the convolution in the mixer itself, as its first two parameters `conv1d_weight` and
`conv1d_bias`: the same sizes under other names (`ssm/mamba_mixer.py`).

Float16Module casts the whole module, so A_log and D, made in fp32, rest in bf16 (`transformer/module.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    Head,
    LayerKind,
    Mamba2,
    Mlp,
    Moe,
)
from simcore.tensor import TensorSpec

__all__ = ["tensors"]

FINAL_NORM: Final = {"nemotron_h": "decoder.final_norm", "llama": "decoder.final_layernorm"}


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters and buffers of `kind` in registration order; names relative to the layer, or to the model outside."""
    block = kind.block
    if block is None:
        return tuple(spec for branch in kind.branches for spec in _BRANCH[type(branch.block)](branch))
    if isinstance(block, Embedding):
        return (TensorSpec("embedding.word_embeddings.weight", (block.vocab, block.hidden), ("vocab", "hidden"),
                           "embedding", "embedding"),)
    if isinstance(block, FinalNorm):
        return (_norm(f"{FINAL_NORM.get(kind.family, 'decoder.final_layernorm')}.weight", block.hidden),)
    if isinstance(block, Head):
        component = "embedding" if block.tied else "lm_head"
        return (TensorSpec("output_layer.weight", (block.vocab, block.hidden), ("vocab", "hidden"), component,
                           "linear"),)
    return ()  # the loss


def _norm(name: str, size: int) -> TensorSpec:
    return TensorSpec(name, (size,), ("hidden",), "norms", "norm")


def _linear(name: str, out: tuple[int, str], into: tuple[int, str], component: str) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear")


def _mamba(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    hidden, inner = (b.hidden, "hidden"), (b.inner, "mamba_inner")

    def small(name: str, shape: tuple[int, ...], dims: tuple[str, ...], module: str) -> TensorSpec:
        return TensorSpec(f"mixer.{name}", shape, dims, "mamba", module)

    return (
        small("dt_bias", (b.num_heads,), ("mamba_heads",), "other"),
        small("A_log", (b.num_heads,), ("mamba_heads",), "other"),
        small("D", (b.num_heads,), ("mamba_heads",), "other"),
        _norm("mixer.in_proj.layer_norm_weight", b.hidden),
        _linear("mixer.in_proj", (b.in_proj, "mamba_in"), hidden, "mamba"),
        small("conv1d.weight", (b.conv_dim, 1, b.conv_kernel), ("mamba_conv", "one", "kernel"), "conv"),
        small("conv1d.bias", (b.conv_dim,), ("mamba_conv",), "conv"),
        small("norm.weight", (b.inner,), ("mamba_inner",), "norm"),
        _linear("mixer.out_proj", hidden, inner, "mamba"),
    )


def _attention(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    qkv = b.q_size + 2 * b.kv_size
    return (
        _linear("self_attention.linear_proj", (b.hidden, "hidden"), (b.q_size, "heads"), "attention"),
        _norm("self_attention.linear_qkv.layer_norm_weight", b.hidden),
        _linear("self_attention.linear_qkv", (qkv, "heads"), (b.hidden, "hidden"), "attention"),
    )


def _mlp(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    rows = b.ffn * (2 if b.gated else 1)  # gate and up in one matrix
    return (
        _norm("mlp.linear_fc1.layer_norm_weight", b.hidden),
        _linear("mlp.linear_fc1", (rows, "ffn"), (b.hidden, "hidden"), "mlp"),
        _linear("mlp.linear_fc2", (b.hidden, "hidden"), (b.ffn, "ffn"), "mlp"),
    )


def _moe(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    gates = 2 if b.gated else 1
    specs = [
        _norm("pre_mlp_layernorm.weight", b.hidden),
        TensorSpec("mlp.router.weight", (b.num_experts, b.hidden), ("experts_router", "hidden"), "router", "router"),
        _expert("linear_fc1", b, (gates * b.expert_ffn, b.hidden), ("expert_ffn", "hidden")),
        _expert("linear_fc2", b, (b.hidden, b.expert_ffn), ("hidden", "expert_ffn")),
    ]
    if b.shared_ffn:
        shared = (gates * b.shared_ffn, "shared_ffn"), (b.shared_ffn, "shared_ffn")
        specs.append(_linear("mlp.shared_experts.linear_fc1", shared[0], (b.hidden, "hidden"), "shared_experts"))
        specs.append(_linear("mlp.shared_experts.linear_fc2", (b.hidden, "hidden"), shared[1], "shared_experts"))
    # Buffers exist where the router corrects its choice with a bias (sigmoid scores), which is how this family routes.
    # Made in fp32; Float16Module casts them, the first forward puts expert_bias back (`moe/router.py`).
    specs += [TensorSpec(f"mlp.router.{name}", (b.num_experts,), ("experts_router",), "router", "router", "fp32",
                         is_buffer=True, trainable=False)
              for name in (("local_tokens_per_expert", "expert_bias") if not b.gated else ())]
    return tuple(specs)


def _expert(name: str, b: Moe, shape: tuple[int, int], dims: tuple[str, str]) -> TensorSpec:
    # One 2-D parameter for each expert: weight0 .. weight{n-1} (TE 2.18, `pytorch/module/grouped_linear.py`).
    return TensorSpec(f"mlp.experts.{name}.weight", shape, dims, "routed_experts", "grouped", copies=b.num_experts)


_BRANCH: Final[dict[type, Callable[[Branch], tuple[TensorSpec, ...]]]] = {
    Mamba2: _mamba, Attention: _attention, Mlp: _mlp, Moe: _moe
}
