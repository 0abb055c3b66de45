"""Parameters and buffers that transformers 5.23 registers, in the order in which FSDP2 meets them.

A module's own parameters come before its children's (`nn.Module.named_parameters`), names are relative to the layer.
Expert weights are one 3-D parameter each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from simcore.models.blocks import (
    Attention,
    Embedding,
    FinalNorm,
    GatedDeltaNet,
    Head,
    LatentAttention,
    LayerKind,
    Mamba2,
    Mlp,
    Moe,
    SharedTransformer,
)
from simcore.models.tensor import TensorSpec, linear_weight
from simcore.models.vision_blocks import VisionPart
from simcore.operators.hf.compressed.tensors import end_tensors, layer_tensors
from simcore.operators.shared import mpt_tensors
from simcore.operators.shared.features import refuse_megatrons
from simcore.operators.shared.indexer import indexer_tensors

__all__ = ["tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters and buffers of a layer of `kind` (or embedding, norm, head), in registration order.

    Names are relative to it; () for the loss and for multi-token prediction. Raises NotYet for features that only
    Megatron builds, and for those of MPT that only llm-foundry builds.
    """
    refuse_megatrons(kind)
    if kind.streams is not None:
        return tuple(layer_tensors(kind))
    if isinstance(kind.block, FinalNorm) and kind.block.streams:
        return tuple(end_tensors(kind.block))
    if kind.family == "mpt":
        return mpt_tensors.plain_tensors(kind)
    block = kind.block
    if isinstance(block, Embedding):
        return (*_embedding(block), *(_scale() if kind.family in ("gemma", *_GEMMA, "gemma4_text") else ()))
    if isinstance(block, FinalNorm):
        return _norm("", block.hidden, biased=block.layer_norm and block.norm_bias)
    if isinstance(block, Head):
        component = "embedding" if block.tied else "lm_head"
        weight = TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), component, "linear")
        return (weight, *[TensorSpec("bias", (block.vocab,), ("vocab",), "lm_head", "bias")] * block.bias)
    if isinstance(block, VisionPart):
        from simcore.operators.hf.vision.specs.towers import tower_tensors  # most models have no tower

        return tower_tensors(block)
    if block is not None:
        return ()  # the loss; transformers builds no modules of multi-token prediction
    norms = [_norm(f"{b.norm}.", kind.hidden, biased=b.layer_norm and b.norm_bias) if b.norm else ()
             for b in kind.branches]
    blocks = [tuple(_BLOCK[type(b.block)](b.name, b.block, kind.family)) for b in kind.branches]
    return tuple(spec for group in _in_order(kind, norms, blocks) for spec in group)


Group = tuple[TensorSpec, ...]


def _in_order(kind: LayerKind, norms: list[Group], blocks: list[Group]) -> list[Group]:
    """Llama and its like make their norms after attention and MLP, Nemotron-H and GPT-2 each before its block.

    Hybrids make their mixer last, Zamba2 the shared transformer.
    """
    if kind.family in ("nemotron_h", "gpt2", "mamba2"):
        return [x for pair in zip(norms, blocks, strict=True) for x in pair]
    if kind.family == "falcon_h1":
        return [blocks[2], blocks[0], blocks[1], *norms]
    if kind.family == "bamba":
        return [blocks[1], *norms, blocks[0]]
    if kind.family == "granitemoehybrid":
        return [*norms, blocks[1], blocks[0]]
    if kind.family == "gpt_neox":
        return [*norms, *blocks]
    if kind.family == "glm4":
        return [*blocks, *norms, *(_norm(f"{b.behind}.", kind.hidden) for b in kind.branches)]
    if kind.family in (*_GEMMA, "gemma4_text", "exaone4", "olmo2", "olmo3"):
        behind = [_norm(f"{b.behind}.", kind.hidden) for b in kind.branches]
        scalar = (TensorSpec("layer_scalar", (1,), ("one",), "norms", "factors", is_buffer=True, trainable=False),)
        if kind.joined:  # `Gemma4TextDecoderLayer` with experts
            return [scalar, *blocks[:2], norms[0], behind[0], norms[1], _norm(f"{kind.joined}.", kind.hidden),
                    _own_input(kind), blocks[2], *behind[1:], norms[2]]
        return [*[scalar] * kind.scales_output, *blocks,
                *(norm for pair in zip(norms, behind, strict=True) for norm in pair), _own_input(kind)]
    if kind.shared is not None:
        own, shared = _shared(kind.shared)
        return [own, *blocks, *norms, shared]
    return [*blocks, *norms]


def _own_input(kind: LayerKind) -> Group:
    """Modules of an input of the layer by itself (`Gemma4TextDecoderLayer`); () without."""
    if kind.own_input is None:
        return ()
    hidden, size = (kind.hidden, "hidden"), (kind.own_input.size, "layer_input")
    return (linear_weight("per_layer_input_gate", size, hidden, "mlp"),
            linear_weight("per_layer_projection", hidden, size, "mlp"),
            *_norm("post_per_layer_input_norm.", kind.hidden))


def _embedding(block: Embedding) -> tuple[TensorSpec, ...]:
    tables = (("wte.", block.vocab, "vocab"), ("wpe.", block.positions, "positions"))
    used = tables if block.positions else (("", block.vocab, "vocab"),)
    return tuple(TensorSpec(f"{at}weight", (size, block.hidden), (dim, "hidden"), "embedding", "embedding")
                 for at, size, dim in used)


def _scale() -> tuple[TensorSpec, ...]:
    """Buffer by which Gemma multiplies its embedding (`Gemma2TextScaledWordEmbedding`), in the type it is loaded in."""
    return (TensorSpec("embed_scale", (), (), "embedding", "factors", is_buffer=True, trainable=False),)


def _norm(at: str, size: int, dim: str = "hidden", *, biased: bool = False) -> tuple[TensorSpec, ...]:
    parts = ("weight", "bias") if biased else ("weight",)
    return tuple(TensorSpec(f"{at}{part}", (size,), (dim,), "norms", "norm") for part in parts)


def _bias(name: str, out: tuple[int, str], component: str) -> TensorSpec:
    return TensorSpec(f"{name}.bias", (out[0],), (out[1],), component, "bias")


def _conv1d(name: str, out: tuple[int, str], into: tuple[int, str], component: str) -> Iterable[TensorSpec]:
    """GPT-2's linear: weight transposed (`pytorch_utils.Conv1D`), with a bias."""
    yield TensorSpec(f"{name}.weight", (into[0], out[0]), (into[1], out[1]), component)
    yield _bias(name, out, component)


def _attention(name: str, b: Any, family: str) -> Iterable[TensorSpec]:
    if family == "gemma4_text":
        yield from _gemma4_attention(name, b)
        return
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "kv_heads")
    if family == "gpt2":
        yield from _conv1d(f"{name}.c_attn", (b.q_size + 2 * b.kv_size, "heads"), hidden, "attention")
        yield from _conv1d(f"{name}.c_proj", hidden, q, "attention")
        return
    if family == "gpt_neox":
        yield from _fused(name, b)
        return
    if family == "phi3":
        yield linear_weight(f"{name}.o_proj", hidden, q, "attention")
        yield linear_weight(f"{name}.qkv_proj", (b.q_size + 2 * b.kv_size, "heads"), hidden, "attention")
        return
    if b.sinks:
        yield TensorSpec(f"{name}.sinks", (b.num_heads,), ("heads",), "attention")
    asked, value = (b.q_size * (1 + b.gated), "heads"), b.value or b.head_dim
    for part, out, into in (("q_proj", asked, hidden), ("k_proj", kv, hidden),
                            ("v_proj", (b.num_kv_heads * value, "kv_heads"), hidden),
                            ("dense" if family == "phi" else "o_proj", hidden, (b.num_heads * value, "heads"))):
        yield linear_weight(f"{name}.{part}", out, into, "attention")
        if b.bias == "all" or (b.bias == "qkv" and part != "o_proj"):
            yield _bias(f"{name}.{part}", out, "attention")
    if b.qk_norm:
        sizes = (b.q_size, b.kv_size) if b.whole_norms else (b.head_dim, b.head_dim)
        names = ("query_layernorm", "key_layernorm") if family == "hunyuan_v1_dense" else ("q_norm", "k_norm")
        for part, size in zip(names, sizes, strict=True):
            yield from _norm(f"{name}.{part}.", size, "heads" if b.whole_norms else "head_dim")
    if b.head_gates:
        yield linear_weight(f"{name}.g_proj", (b.num_heads, "heads"), hidden, "attention")


def _fused(name: str, b: Any) -> Iterable[TensorSpec]:
    """`GPTNeoXAttention`: query, key and value of a head come one after another in one product."""
    sizes = (("query_key_value", (3 * b.q_size, "heads"), (b.hidden, "hidden")),
             ("dense", (b.hidden, "hidden"), (b.q_size, "heads")))
    for part, out, into in sizes:
        yield linear_weight(f"{name}.{part}", out, into, "attention")
        yield from [_bias(f"{name}.{part}", out, "attention")] * (b.bias == "all")


def _gemma4_attention(name: str, b: Any) -> Iterable[TensorSpec]:
    """`Gemma4TextAttention`: the norm of values has no weight."""
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "kv_heads")
    yield linear_weight(f"{name}.q_proj", q, hidden, "attention")
    yield from _norm(f"{name}.q_norm.", b.head_dim, "head_dim")
    if not b.borrows:
        yield from _norm(f"{name}.k_norm.", b.head_dim, "head_dim")
        yield linear_weight(f"{name}.k_proj", kv, hidden, "attention")
    if not (b.values_from_keys or b.borrows):
        yield linear_weight(f"{name}.v_proj", kv, hidden, "attention")
    yield linear_weight(f"{name}.o_proj", hidden, q, "attention")


def _latent(name: str, b: Any, family: str) -> Iterable[TensorSpec]:
    """`DeepseekV3Attention`: the norms stand between the two projections."""
    hidden, q = (b.hidden, "hidden"), (b.q_size, "heads")
    if b.q_rank:
        yield linear_weight(f"{name}.q_a_proj", (b.q_rank, "q_rank"), hidden, "attention")
        yield from _norm(f"{name}.q_a_layernorm.", b.q_rank, "q_rank")
        yield linear_weight(f"{name}.q_b_proj", q, (b.q_rank, "q_rank"), "attention")
    else:
        yield linear_weight(f"{name}.q_proj", q, hidden, "attention")
    yield linear_weight(f"{name}.kv_a_proj_with_mqa", (b.kv_rank + b.rope, "kv_rank"), hidden, "attention")
    yield from _norm(f"{name}.kv_a_layernorm.", b.kv_rank, "kv_rank")
    yield linear_weight(f"{name}.kv_b_proj", (b.kv_size, "heads"), (b.kv_rank, "kv_rank"), "attention")
    yield linear_weight(f"{name}.o_proj", hidden, (b.out_size, "heads"), "attention")
    yield from indexer_tensors(f"{name}.indexer", b)


def _mlp(name: str, b: Any, family: str, component: str = "mlp") -> Iterable[TensorSpec]:
    hidden, ffn = (b.hidden, "hidden"), (b.ffn, "ffn")
    if family in _TWO_LINEARS:
        for part, out, into in zip(_TWO_LINEARS[family], (ffn, hidden), (hidden, ffn), strict=True):
            yield linear_weight(f"{name}.{part}", out, into, component)
            yield from [_bias(f"{name}.{part}", out, component)] * b.bias
        return
    if family in ("phi3", "glm", "glm4"):
        yield linear_weight(f"{name}.gate_up_proj", (2 * b.ffn, "ffn"), hidden, component)
        yield linear_weight(f"{name}.down_proj", hidden, ffn, component)
        return
    if family == "granitemoehybrid":
        yield linear_weight(f"{name}.input_linear", (2 * b.ffn, "ffn"), hidden, component)
        yield linear_weight(f"{name}.output_linear", hidden, ffn, component)
        return
    if b.gelu and not b.gated:
        yield from _conv1d(f"{name}.c_fc", ffn, hidden, component)
        yield from _conv1d(f"{name}.c_proj", hidden, ffn, component)
        return
    if b.gated:
        yield linear_weight(f"{name}.gate_proj", ffn, hidden, component)
    yield linear_weight(f"{name}.up_proj", ffn, hidden, component)
    yield linear_weight(f"{name}.down_proj", hidden, ffn, component)


def _mamba(name: str, b: Any, family: str) -> Iterable[TensorSpec]:
    for part in ("dt_bias", "A_log", "D"):
        yield TensorSpec(f"{name}.{part}", (b.num_heads,), ("mamba_heads",), "mamba")
    yield TensorSpec(f"{name}.conv1d.weight", (b.conv_dim, 1, b.conv_kernel), ("mamba_conv", "one", "kernel"), "mamba",
                     "conv")
    if b.conv_bias:
        yield TensorSpec(f"{name}.conv1d.bias", (b.conv_dim,), ("mamba_conv",), "mamba", "conv")
    into, out = (b.in_proj, "mamba_in"), (b.hidden, "hidden")
    yield linear_weight(f"{name}.in_proj", into, out, "mamba")
    yield from [_bias(f"{name}.in_proj", into, "mamba")] * b.bias
    if b.normed:
        yield TensorSpec(f"{name}.norm.weight", (b.inner,), ("mamba_inner",), "mamba", "norm")
    yield linear_weight(f"{name}.out_proj", out, (b.inner, "mamba_inner"), "mamba")
    yield from [_bias(f"{name}.out_proj", out, "mamba")] * b.bias
    if family == "falcon_h1":
        yield TensorSpec(f"{name}.mup_vector", (1, 1, b.in_proj), ("one", "one", "mamba_in"), "mamba", "factors",
                         is_buffer=True, trainable=False)


def _delta_net(name: str, b: Any, family: str) -> Iterable[TensorSpec]:
    """`Qwen3NextGatedDeltaNet` (joint projections), `Qwen3_5GatedDeltaNet`."""
    hidden, heads = (b.hidden, "hidden"), b.num_value_heads
    for part in ("dt_bias", "A_log"):
        yield TensorSpec(f"{name}.{part}", (heads,), ("value_heads",), "delta_net")
    conv = TensorSpec(f"{name}.conv1d.weight", (b.conv_dim, 1, b.conv_kernel), ("delta_conv", "one", "kernel"),
                      "delta_net", "conv")
    parts = ((("qkvz", b.conv_dim + b.values), ("ba", 2 * heads)) if b.joint else
             (("qkv", b.conv_dim), ("z", b.values), ("b", heads), ("a", heads)))
    projections = [linear_weight(f"{name}.in_proj_{part}", (size, "delta_in"), hidden, "delta_net")
                   for part, size in parts]
    ends = [TensorSpec(f"{name}.norm.weight", (b.value_dim,), ("value_dim",), "delta_net", "norm"),
            linear_weight(f"{name}.out_proj", hidden, (b.values, "value_heads"), "delta_net")]
    yield from (conv, *projections, *ends) if b.joint else (conv, *ends, *projections)


def _moe(name: str, b: Any, family: str) -> Iterable[TensorSpec]:
    if b.router == "scaled_softmax":
        yield from _scaled_router(b)
        yield from _experts(name, b)
        return
    experts, router = [*_experts(f"{name}.experts", b)], [*_router(name, b, family)]
    # Some make the router first.
    yield from (*router, *experts) if family in _ROUTER_FIRST else (*experts, *router)
    shared = Mlp(b.hidden, b.shared_ffn, gated=b.gated)
    if family == "granitemoehybrid":
        yield from _mlp("shared_mlp", shared, family, "shared_experts")
    elif b.shared_ffn:
        ending = "" if b.shared_gate or b.weighs_input else "s"
        yield from _mlp(f"{name}.shared_expert{ending}", shared, family, "shared_experts")
    if b.latent:
        seen, hidden = (b.latent, "latent"), (b.hidden, "hidden")
        yield linear_weight(f"{name}.fc1_latent_proj", seen, hidden, "latent_projections")
        yield linear_weight(f"{name}.fc2_latent_proj", hidden, seen, "latent_projections")
    if b.shared_gate:
        yield linear_weight(f"{name}.shared_expert_gate", (1, "one"), (b.hidden, "hidden"), "shared_experts")


def _experts(at: str, b: Any) -> Iterable[TensorSpec]:
    """Gate and up are one tensor; in `GptOssExperts` and `Llama4TextExperts` its input's dimension comes first."""
    hidden = (b.expert_hidden, "latent" if b.latent else "hidden")
    ffn = (b.expert_ffn, "expert_ffn")
    first = ("gate_up_proj", (2 * b.expert_ffn, "expert_ffn")) if b.gated else ("up_proj", ffn)
    for part, out, into in ((*first, hidden), ("down_proj", hidden, ffn)):
        rows, columns = (into, out) if b.bias or b.weighs_input else (out, into)
        yield TensorSpec(f"{at}.{part}", (b.num_experts, rows[0], columns[0]), ("experts", rows[1], columns[1]),
                         "routed_experts", "grouped")
        if b.bias:
            yield TensorSpec(f"{at}.{part}_bias", (b.num_experts, out[0]), ("experts", out[1]), "routed_experts",
                             "bias")


def _scaled_router(b: Any) -> Iterable[TensorSpec]:
    """`Gemma4TextRouter`: its norm has no weight."""
    yield TensorSpec("router.scale", (b.hidden,), ("hidden",), "router")
    yield TensorSpec("router.per_expert_scale", (b.num_experts,), ("experts_router",), "router")
    yield linear_weight("router.proj", (b.num_experts, "experts_router"), (b.hidden, "hidden"), "router")


def _router(name: str, b: Any, family: str) -> Iterable[TensorSpec]:
    at = f"{name}.router" if b.router == "topk_softmax" or b.weighs_input else f"{name}.gate"
    yield TensorSpec(f"{at}.weight", (b.num_experts, b.hidden), ("experts_router", "hidden"), "router", "router")
    if b.router == "topk_softmax" and b.bias:
        yield TensorSpec(f"{at}.bias", (b.num_experts,), ("experts_router",), "router", "bias")
    if b.router == "sigmoid" and not b.weighs_input:
        holder = name if family in ("hy_v3", "minimax_m2") else at
        yield TensorSpec(f"{holder}.e_score_correction_bias", (b.num_experts,), ("experts_router",), "router", "router",
                         "fp32", is_buffer=True, trainable=False)


def _shared(b: SharedTransformer) -> tuple[Group, Group]:
    """The layer's own projection, and what is shared (`Zamba2HybridLayer`)."""
    at, own = b.name, linear_weight("linear", (b.hidden, "hidden"), (b.hidden, "hidden"), "mlp")
    found = (*_shared_attention(f"{at}.self_attn", b), *_shared_mlp(f"{at}.feed_forward", b),
             *_norm(f"{at}.input_layernorm.", 2 * b.hidden), *_norm(f"{at}.pre_ff_layernorm.", b.hidden))
    return (own,), found


def _shared_attention(at: str, b: SharedTransformer) -> Iterable[TensorSpec]:
    """Adapters are pairs of linears in lists that have an empty place for every layer of another transformer."""
    wide, q, kv = (2 * b.hidden, "hidden"), (b.num_heads * b.head_dim, "heads"), (b.num_kv_heads * b.head_dim,
                                                                                  "kv_heads")
    for part, out in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
        yield linear_weight(f"{at}.{part}", out, wide, "attention")
    yield linear_weight(f"{at}.o_proj", (b.hidden, "hidden"), q, "attention")
    for part in "qkv" if b.adapts_attention else "":
        yield from _low_rank(f"{at}.linear_{part}_adapter_list", b, wide, wide, "attention")


def _shared_mlp(at: str, b: SharedTransformer) -> Iterable[TensorSpec]:
    hidden, ffn = (b.hidden, "hidden"), (2 * b.ffn, "ffn")
    yield linear_weight(f"{at}.gate_up_proj", ffn, hidden, "mlp")
    yield linear_weight(f"{at}.down_proj", hidden, (b.ffn, "ffn"), "mlp")
    yield from _low_rank(f"{at}.gate_up_proj_adapter_list", b, ffn, hidden, "mlp")


def _low_rank(at: str, b: SharedTransformer, out: tuple[int, str], into: tuple[int, str],
              component: str) -> Iterable[TensorSpec]:
    for place in b.places:
        yield linear_weight(f"{at}.{place}.0", (b.rank, "rank"), into, component)
        yield linear_weight(f"{at}.{place}.1", out, (b.rank, "rank"), component)


_GEMMA: Final = ("gemma2", "gemma3_text")
_TWO_LINEARS: Final = {"gpt_neox": ("dense_h_to_4h", "dense_4h_to_h"), "phi": ("fc1", "fc2"),
                       "starcoder2": ("c_fc", "c_proj")}
_ROUTER_FIRST: Final = ("hy_v3", "minimax_m2", "mixtral", "gpt_oss", "olmoe", "qwen2_moe", "qwen3_next", "step3p5",
                        "qwen3_5_moe_text", "granitemoehybrid")
_BLOCK: Final[dict[type, Callable[[str, Any, str], Iterable[TensorSpec]]]] = {
    Mamba2: _mamba, GatedDeltaNet: _delta_net, Attention: _attention, LatentAttention: _latent, Mlp: _mlp, Moe: _moe
}
