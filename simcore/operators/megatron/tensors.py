"""The parameters and buffers that Megatron-Core registers with the Transformer Engine layer spec.

Order, names and shapes are those of `named_parameters()` of `MambaModel` and `GPTModel` (megatron-core 0.16.1,
`models/mamba/mamba_layer_specs.py`, `models/gpt/gpt_layer_specs.py`), before tensor and expert parallelism split them:

 * a module's own parameters come before its children's, so the mixer starts with dt_bias, A_log, D;
 * `Attention` builds `linear_proj` before `SelfAttention` builds `linear_qkv` (`transformer/attention.py`);
 * TE's `LayerNormLinear` registers `layer_norm_weight` before `weight` (TransformerEngine 2.18,
   `pytorch/module/layernorm_linear.py`);
 * with an output gate the query's rows are followed by as many of the gate, group by group; the gated delta net stands
   in the attention's place and has all its projections in one (`ssm/gated_delta_net.py`);
 * latent attention has a separate norm before it, and its down projections are whole on every tp rank
   (`transformer/multi_latent_attention.py`, parallel_mode "duplicated"); the layer spec with qk_layernorm, which Bridge
   sets for DeepSeek, fuses the inner norms into the projections up, the one without has none;
 * with an indexer of keys (main `experimental_attention_variant/{absorbed_mla,dsa}.py`) those norms are modules behind
   all projections. The indexer comes first, is whole on every tp rank, and has gradients: of a loss of its own.

Main of August 2026 holds the convolution in the mixer itself, as its first two parameters `conv1d_weight` and
`conv1d_bias`: the same sizes under other names (`ssm/mamba_mixer.py`).

Float16Module casts the whole module, so A_log and D, made in fp32, rest in bf16 (`transformer/module.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simcore.errors import IllegalLayout, NotYet, Problem
from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    GatedDeltaNet,
    Head,
    LatentAttention,
    LayerKind,
    Mamba2,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.tensor import TensorSpec, linear_weight
from simcore.models.vision_blocks import VisionPart
from simcore.operators.megatron.ops.value_head import value_weight

__all__ = ["tensors"]

FINAL_NORM: Final = {"nemotron_h": "decoder.final_norm", "llama": "decoder.final_layernorm"}

BUILT: Final = (
    "deepseek_v2", "deepseek_v3", "exaone4", "exaone_moe", "gemma2", "gemma3_text", "glm4_moe", "glm_moe_dsa", "gpt2",
    "gpt_oss", "llama", "ministral3", "mistral", "mixtral",
    "nemotron_h", "nemotron_h_omni", "nemotron_h_vl", "olmoe", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe",
    "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl",
    "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_text")
"""Families whose layers Megatron builds, and of the text behind a tower; one that was held against it is added."""
_ABSENT: Final = {"deepseek_v4": Problem(
    "model", "Invalid experimental attention variant: dsv4_hybrid: neither core 0.16.1 nor main of 2026-08-22 has the "
    "layers of DeepSeek-V4, which Bridge asks for; Megatron-LM's branch dev has them, and is not simulated",
    "Megatron-LM d98e8a64 core/models/gpt/experimental_attention_variant_module_specs.py:162; Bridge 067f987d "
    "models/deepseek/deepseek_v4_bridge.py:397")}
"""Families that Bridge has and core has not."""

_WITHOUT_BRIDGE: Final = ("kimi_vl",)
"""Families with a tower that no Bridge here builds (067f987d models/kimi_vl has Kimi-K2.5-VL alone)."""


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters and buffers of a layer of `kind` (or embedding, norm, head), in registration order.

    Names are relative to the layer, or for embedding, norm and head to the model; () for the loss. Raises NotYet for
    families that are not in `BUILT`, IllegalLayout for those that Megatron has no layers of.
    """
    block = kind.block
    if kind.family in _WITHOUT_BRIDGE:
        raise NotYet(Problem("model", f"not yet: {kind.family} in Megatron's layers"))
    if isinstance(block, VisionPart):
        from simcore.operators.megatron.vision.tensors import tower_tensors  # most models have no tower

        return tower_tensors(block, _layer)
    if kind.family in _ABSENT:
        raise IllegalLayout(_ABSENT[kind.family])
    if kind.family not in BUILT:
        raise NotYet(Problem("model", f"not yet: {kind.family} in Megatron's layers"))
    if block is None:
        return _layer(kind.branches)
    if isinstance(block, Embedding):
        return _embedding(block)
    if isinstance(block, FinalNorm):
        return _norm(f"{FINAL_NORM.get(kind.family, 'decoder.final_layernorm')}.", block.hidden,
                     layer_norm=block.layer_norm)
    if isinstance(block, Head):
        if block.vocab == 1:
            return value_weight(block.hidden)
        component = "embedding" if block.tied else "lm_head"
        return (TensorSpec("output_layer.weight", (block.vocab, block.hidden), ("vocab", "hidden"), component,
                           "linear"),)
    return _mtp(block, kind.branches) if isinstance(block, Mtp) else ()  # () is the loss


def _layer(branches: tuple[Branch, ...]) -> tuple[TensorSpec, ...]:
    return tuple(spec for branch in branches for spec in _BRANCH[type(branch.block)](branch))


def _embedding(block: Embedding) -> tuple[TensorSpec, ...]:
    at, vocab = "embedding", (("vocab", block.vocab, "word_embeddings"),)
    rows = (*vocab, ("positions", block.positions, "position_embeddings")) if block.positions else vocab
    return tuple(TensorSpec(f"{at}.{name}.weight", (size, block.hidden), (dim, "hidden"), "embedding", "embedding")
                 for dim, size, name in rows)


def _mtp(block: Mtp, branches: tuple[Branch, ...]) -> tuple[TensorSpec, ...]:
    """`MultiTokenPredictionLayer`, all of which counts as `mtp`, and the embedding, which is the model's own."""
    hidden = (block.hidden, "hidden")
    inner = (replace(spec, name=f"transformer_layer.{spec.name}") for spec in _layer(branches))
    own = TensorSpec("embedding.word_embeddings.weight", (block.vocab, block.hidden), ("vocab", "hidden"), "embedding",
                     "embedding")
    enorm, hnorm, last = (_norm(f"{name}.", block.hidden, layer_norm=branches[0].layer_norm)
                          for name in ("enorm", "hnorm", "final_layernorm"))
    specs = (*enorm, *hnorm, linear_weight("eh_proj", (block.hidden, "tp_out"), (2 * block.hidden, hidden[1]), "mtp"),
             *inner, *last)
    return (*(replace(spec, component="mtp") for spec in specs), own)


def _norm(at: str, size: int, dim: str = "hidden", *, layer_norm: bool = False) -> tuple[TensorSpec, ...]:
    """`at` ends in the separator: "." of a norm, "layer_norm_" of a fused one."""
    parts = ("weight", "bias") if layer_norm else ("weight",)
    return tuple(TensorSpec(f"{at}{part}", (size,), (dim,), "norms", "norm") for part in parts)


def _bias(name: str, out: tuple[int, str], component: str, *, wanted: bool) -> tuple[TensorSpec, ...]:
    return (TensorSpec(f"{name}.bias", (out[0],), (out[1],), component, "bias"),) if wanted else ()


def _mamba(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    hidden, inner = (b.hidden, "hidden"), (b.inner, "mamba_inner")

    def small(name: str, shape: tuple[int, ...], dims: tuple[str, ...], module: str) -> TensorSpec:
        return TensorSpec(f"mixer.{name}", shape, dims, "mamba", module)

    return (
        small("dt_bias", (b.num_heads,), ("mamba_heads",), "other"),
        small("A_log", (b.num_heads,), ("mamba_heads",), "other"),
        small("D", (b.num_heads,), ("mamba_heads",), "other"),
        *_norm("mixer.in_proj.layer_norm_", b.hidden, layer_norm=branch.layer_norm),
        linear_weight("mixer.in_proj", (b.in_proj, "mamba_in"), hidden, "mamba"),
        small("conv1d.weight", (b.conv_dim, 1, b.conv_kernel), ("mamba_conv", "one", "kernel"), "conv"),
        small("conv1d.bias", (b.conv_dim,), ("mamba_conv",), "conv"),
        small("norm.weight", (b.inner,), ("mamba_inner",), "norm"),
        linear_weight("mixer.out_proj", hidden, inner, "mamba"),
    )


def _attention(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    at, hidden = "self_attention", (b.hidden, "hidden")
    qkv = (b.q_size * (2 if b.gated else 1) + 2 * b.kv_size, "heads")
    sinks = (TensorSpec(f"{at}.core_attention.softmax_offset", (b.num_heads,), ("heads",), "attention"),)
    wide = (b.q_size, b.kv_size) if b.whole_norms else (b.head_dim, b.head_dim)
    norms = (spec for name, size in zip("qk", wide, strict=True) for spec in _norm(
        f"{at}.{name}_layernorm.", size, "head_dim", layer_norm=branch.layer_norm))
    return (
        *(sinks if b.sinks else ()),
        linear_weight(f"{at}.linear_proj", hidden, (b.q_size, "heads"), "attention"),
        *_bias(f"{at}.linear_proj", hidden, "attention", wanted=b.bias == "all"),
        *_behind(branch, f"{at}.linear_proj"),
        *_before(branch, f"{at}.linear_qkv"),
        linear_weight(f"{at}.linear_qkv", qkv, hidden, "attention"),
        *_bias(f"{at}.linear_qkv", qkv, "attention", wanted=bool(b.bias)),
        *(norms if b.qk_norm else ()),
    )


def _before(branch: Branch, at: str) -> tuple[TensorSpec, ...]:
    """Norm of a linear's input, a part of its module; none where norms are behind blocks alone."""
    block: Any = branch.block
    return _norm(f"{at}.layer_norm_", block.hidden, layer_norm=branch.layer_norm) if branch.norm else ()


def _behind(branch: Branch, at: str) -> tuple[TensorSpec, ...]:
    """Norm behind a linear, a part of its module (Bridge's `models/common/te_layers.py`)."""
    block: Any = branch.block
    return _norm(f"{at}.post_layernorm.", block.hidden) if branch.behind else ()


def _delta_net(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    at, hidden, heads = "self_attention", (b.hidden, "hidden"), b.num_value_heads
    conv = TensorSpec(f"{at}.conv1d.weight", (b.conv_dim, 1, b.conv_kernel), ("delta_conv", "one", "kernel"),
                      "delta_net", "conv")
    return (
        *(TensorSpec(f"{at}.{name}", (heads,), ("value_heads",), "delta_net") for name in ("dt_bias", "A_log")),
        *_norm(f"{at}.in_proj.layer_norm_", b.hidden, layer_norm=branch.layer_norm),
        linear_weight(f"{at}.in_proj", (b.conv_dim + b.values + 2 * heads, "delta_in"), hidden, "delta_net"),
        conv,
        *(replace(spec, component="delta_net")
          for spec in _norm(f"{at}.out_norm.", b.value_dim, "value_dim", layer_norm=branch.layer_norm)),
        linear_weight(f"{at}.out_proj", hidden, (b.values, "value_heads"), "delta_net"),
    )


def _latent(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    at, hidden, q, rank = "self_attention", (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_rank, "kv_rank")
    apart = b.indexer is not None

    def inner(name: str, size: int, dim: str) -> tuple[TensorSpec, ...]:
        wanted = b.inner_norms and not apart
        return _norm(f"{at}.{name}.layer_norm_", size, dim, layer_norm=branch.layer_norm) if wanted else ()

    if b.q_rank:
        query: tuple[TensorSpec, ...] = (
            linear_weight(f"{at}.linear_q_down_proj", (b.q_rank, "q_rank"), hidden, "attention"),
            *inner("linear_q_up_proj", b.q_rank, "q_rank"),
            linear_weight(f"{at}.linear_q_up_proj", q, (b.q_rank, "q_rank"), "attention"))
    else:
        query = (linear_weight(f"{at}.linear_q_proj", q, hidden, "attention"),)
    return (
        *_norm("input_layernorm.", b.hidden, layer_norm=branch.layer_norm),
        *(_indexer(f"{at}.core_attention.indexer", b) if apart else ()),
        linear_weight(f"{at}.linear_proj", hidden, (b.out_size, "heads"), "attention"),
        *_bias(f"{at}.linear_proj", hidden, "attention", wanted=b.bias),
        *query,
        linear_weight(f"{at}.linear_kv_down_proj", (b.kv_rank + b.rope, "kv_rank"), hidden, "attention"),
        *inner("linear_kv_up_proj", b.kv_rank, "kv_rank"),
        linear_weight(f"{at}.linear_kv_up_proj", (b.kv_size, "heads"), rank, "attention"),
        *(_norm(f"{at}.q_layernorm.", b.q_rank, "q_rank") if apart else ()),
        *(_norm(f"{at}.kv_layernorm.", b.kv_rank, "kv_rank") if apart else ()),
    )


def _indexer(at: str, b: LatentAttention) -> tuple[TensorSpec, ...]:
    """None in a layer that takes the keys of an earlier one."""
    index = b.indexer
    assert index is not None
    if index.borrows:
        return ()
    hidden, heads = (b.hidden, "hidden"), (index.num_heads, "index_heads")
    return (
        linear_weight(f"{at}.linear_wq_b", (index.num_heads * index.head_dim, "index_heads"), (b.q_rank, "q_rank"),
                      "attention"),
        linear_weight(f"{at}.linear_wk", (index.head_dim, "index_dim"), hidden, "attention"),
        *_norm(f"{at}.k_norm.", index.head_dim, "index_dim", layer_norm=True),
        linear_weight(f"{at}.linear_weights_proj", heads, hidden, "attention"),
    )


def _mlp(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    rows = (b.ffn * (2 if b.gated else 1), "ffn")  # gate and up in one matrix
    hidden = (b.hidden, "hidden")
    return (
        *_before(branch, "mlp.linear_fc1"),
        linear_weight("mlp.linear_fc1", rows, hidden, "mlp"),
        *_bias("mlp.linear_fc1", rows, "mlp", wanted=b.bias),
        linear_weight("mlp.linear_fc2", hidden, (b.ffn, "ffn"), "mlp"),
        *_bias("mlp.linear_fc2", hidden, "mlp", wanted=b.bias),
        *_behind(branch, "mlp.linear_fc2"),
    )


def _moe(branch: Branch) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    gates = 2 if b.gated else 1
    hidden, wide, narrow = (b.hidden, "hidden"), (gates * b.expert_ffn, "expert_ffn"), (b.expert_ffn, "expert_ffn")
    seen = (b.latent, "latent") if b.latent else hidden
    # Whole on every tp rank (parallel_mode "duplicated").
    projections = (("fc1", seen, hidden), ("fc2", hidden, seen)) if b.latent else ()
    specs = [
        *_norm("pre_mlp_layernorm.", b.hidden, layer_norm=branch.layer_norm),
        TensorSpec("mlp.router.weight", (b.num_experts, b.hidden), ("experts_router", "hidden"), "router", "router"),
        *_bias("mlp.router", (b.num_experts, "experts_router"), "router", wanted=b.router == "topk_softmax"),
        *(linear_weight(f"mlp.{name}_latent_proj", out, into, "latent_projections") for name, out, into in projections),
        *_expert("linear_fc1", b, wide, seen),
        *_expert("linear_fc2", b, seen, narrow),
    ]
    if b.shared_ffn:
        shared = (gates * b.shared_ffn, "shared_ffn"), (b.shared_ffn, "shared_ffn")
        if b.shared_gate:  # the module's own, whole on every tp rank (`moe/shared_experts.py`)
            specs.append(TensorSpec("mlp.shared_experts.gate_weight", (1, b.hidden), ("one", "hidden"),
                                    "shared_experts"))
        specs.append(linear_weight("mlp.shared_experts.linear_fc1", shared[0], hidden, "shared_experts"))
        specs.append(linear_weight("mlp.shared_experts.linear_fc2", hidden, shared[1], "shared_experts"))
    # Buffers exist where the router corrects its choice with a bias (moe_router_enable_expert_bias, sigmoid scores).
    # Made in fp32; Float16Module casts them, the first forward puts expert_bias back (`moe/router.py`).
    corrected = ("local_tokens_per_expert", "expert_bias") if b.router == "sigmoid" else ()
    specs += [TensorSpec(f"mlp.router.{name}", (b.num_experts,), ("experts_router",), "router", "router", "fp32",
                         is_buffer=True, trainable=False) for name in corrected]
    return tuple(specs)


def _expert(name: str, b: Moe, out: tuple[int, str], into: tuple[int, str]) -> tuple[TensorSpec, ...]:
    # One 2-D parameter for each expert: weight0 .. weight{n-1} (TE 2.18, `pytorch/module/grouped_linear.py`).
    at = f"mlp.experts.{name}"
    weight = TensorSpec(f"{at}.weight", (out[0], into[0]), (out[1], into[1]), "routed_experts", "grouped",
                        copies=b.num_experts)
    bias = TensorSpec(f"{at}.bias", (out[0],), (out[1],), "routed_experts", "bias", copies=b.num_experts)
    return (weight, bias) if b.bias else (weight,)


_BRANCH: Final[dict[type, Callable[[Branch], tuple[TensorSpec, ...]]]] = {
    Mamba2: _mamba, Attention: _attention, LatentAttention: _latent, GatedDeltaNet: _delta_net, Mlp: _mlp, Moe: _moe
}
