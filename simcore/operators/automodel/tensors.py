"""The parameters and buffers that NeMo Automodel's own models register.

Order, names and shapes are those of `named_parameters()` of `NemotronHForCausalLM`, `LlamaForCausalLM`,
`Qwen2ForCausalLM`, `Qwen3ForCausalLM` and the models of `sparse` (nemo-automodel 0.7.0,
`components/models/nemotron_v3/{model,layers}.py`, `components/models/{llama,qwen2,qwen3}/model.py`,
`components/models/*/{model,layers}.py` of those, `components/moe/{layers,experts}.py`), before expert parallelism and
FSDP2 split them:

 * routed experts are two 3-D tensors, input dimension before output dimension; dimension 0 is what expert parallelism
   splits, dimension 1 what FSDP2 splits over `ep_shard` (`components/moe/parallelizer.py`, `_moe_shard_placement`);
 * dt_bias, A_log and D belong to a separate module, `_fp32_params`, stored and computed in fp32;
 * Automodel's `MLP` registers up before gate, its Llama and dense Qwen the other way round;
 * all but Nemotron-H's layers register their norms after attention and MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import (
    Attention,
    Branch,
    CompressedAttention,
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
from simcore.operators.automodel.compressed.tensors import attention_tensors, end_tensors, stream_tensors
from simcore.operators.automodel.sparse import QWEN3_5, SPARSE, has_wide_head, is_eager_sparse, shares_in_layer
from simcore.operators.shared.features import refuse_megatrons
from simcore.operators.shared.indexer import indexer_tensors

__all__ = ["FAMILIES", "layer_of", "layers_of_further", "moves_stem", "tensors"]

FAMILIES: Final = tuple(sorted({"llama", "nemotron_h", "qwen2", "qwen3", *QWEN3_5, *SPARSE}))
_TOWERS: Final = ("kimi_vl", "mistral3", "nemotron_h_omni", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe")
"""Families whose tower stands before Automodel's own layers: transformers' (`models/{qwen3_5*,qwen3_vl_moe,mistral4}`),
RADIO or MoonViT."""


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters and buffers of a layer of `kind` (or embedding, norm, head), in registration order.

    Names are relative to the layer, or for embedding, norm and head to the model. () for the loss. Raises NotYet for
    families and parts that Automodel's own layers do not cover.
    """
    block = kind.block
    if isinstance(block, VisionPart) and kind.family in _TOWERS:
        from simcore.operators.hf.vision.specs.towers import tower_tensors  # most models have no tower

        return tower_tensors(block)
    if kind.family not in FAMILIES:
        raise NotYet(Problem("model", f"not yet: Automodel's own layers of {kind.family} (served: "
                             f"{', '.join(FAMILIES)})"))
    refuse_megatrons(kind, ties=False, predicts=True)
    if isinstance(block, Mtp):
        return _further(kind, block)
    if block is None:
        return _layer(kind)
    if isinstance(block, Embedding):
        return (TensorSpec("model.embed_tokens.weight", (block.vocab, block.hidden), ("vocab", "hidden"), "embedding",
                           "embedding"),)
    if isinstance(block, FinalNorm):
        return tuple(end_tensors(block)) if block.streams else (_norm("model.norm", block.hidden),)
    if isinstance(block, Head):
        component = "embedding" if block.tied else "lm_head"
        return (TensorSpec("lm_head.weight", (block.vocab, block.hidden), ("vocab", "hidden"), component, "linear",
                           "fp32" if has_wide_head(kind.family) else ""),)
    return ()  # the loss


def _layer(kind: LayerKind) -> tuple[TensorSpec, ...]:
    norms = [_norm(branch.norm, kind.hidden) for branch in kind.branches]
    blocks = [spec for branch in kind.branches for spec in _BRANCH[type(branch.block)](branch, kind.family)]
    streams = tuple(stream_tensors(kind)) if kind.streams else ()
    return tuple(norms + blocks) if kind.family == "nemotron_h" else (*blocks, *norms, *streams)


def _further(kind: LayerKind, block: Mtp) -> tuple[TensorSpec, ...]:
    """`MTPModule`: its layers (`layers_of_further`); embedding and head are the model's.

    All but routed experts, which are placed as all others, counts as `mtp`.
    """
    predicts = kind.family in ("nemotron_h", *QWEN3_5)
    if not predicts or block.modules > 1:
        raise NotYet(Problem("model", "not yet: multi-token prediction in Automodel's layers " + (
            "by several modules" if predicts else f"of {kind.family}; 0.7.0 trains none of deepseek_v3 "
            "(models/deepseek_v3/model.py)")))
    if kind.family in QWEN3_5 and not isinstance(kind.branches[0].block, Attention):
        raise NotYet(Problem("model", "not yet: multi-token prediction behind a last layer without attention"))
    layers = layers_of_further(kind)
    family = "qwen3" if kind.family == QWEN3_5[0] else kind.family  # transformers' layer, whose gate stands first
    last, found = len(layers) - 1, []
    for place, branches in enumerate(layers):
        specs = [*_layer(replace(kind, block=None, branches=branches, family=family))]
        if place == 0:
            specs += [_norm("enorm", block.hidden), _norm("hnorm", block.hidden),
                      linear_weight("eh_proj", (block.hidden, "hidden"), (2 * block.hidden, "hidden"), "mtp")]
        specs += [_norm("final_layernorm", block.hidden)] if place == last else []
        found += [replace(spec, name=f"{layer_of(place)}{spec.name}", component=spec.component if spec.component ==
                          "routed_experts" else "mtp") for spec in specs]
    table = (block.vocab, block.hidden), ("vocab", "hidden")
    looked_up = () if moves_stem(kind) else (
        TensorSpec("model.embed_tokens.weight", *table, "embedding", "embedding"),)
    return (*found, *looked_up, TensorSpec("lm_head.weight", *table, "lm_head", "linear"))


def moves_stem(kind: LayerKind) -> bool:
    """True for a module that takes the sequence's embeddings moved by one, with its images, and looks nothing up.

    Qwen 3.5 with experts that reads images (0.7.0 `models/qwen3_5_moe/model.py`, _rolled_embed_inputs).
    """
    return isinstance(kind.block, Mtp) and kind.block.sees and kind.family == QWEN3_5[1]


def layers_of_further(kind: LayerKind) -> tuple[tuple[Branch, ...], ...]:
    """Branches of each layer of a module of multi-token prediction: one of a hybrid, all of a decoder."""
    return (kind.branches,) if kind.family in QWEN3_5 else tuple((branch,) for branch in kind.branches)


def layer_of(place: int) -> str:
    """Path, with a dot at the end, of a layer of the module of multi-token prediction."""
    return f"mtp.layers.{place}."


def _norm(path: str, size: int) -> TensorSpec:
    return TensorSpec(f"{path}.weight", (size,), ("hidden",), "norms", "norm")


def _mamba(branch: Branch, family: str) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    at = branch.name
    hidden, inner = (b.hidden, "hidden"), (b.inner, "mamba_inner")
    conv = (b.conv_dim, "mamba_conv")
    holder = [TensorSpec(f"{at}._fp32_params.{name}", (b.num_heads,), ("mamba_heads",), "mamba", stored="fp32")
              for name in ("dt_bias", "A_log", "D")]
    return (
        linear_weight(f"{at}.in_proj", (b.in_proj, "mamba_in"), hidden, "mamba"),
        TensorSpec(f"{at}.conv1d.weight", (conv[0], 1, b.conv_kernel), (conv[1], "one", "kernel"), "mamba", "conv"),
        TensorSpec(f"{at}.conv1d.bias", (conv[0],), (conv[1],), "mamba", "conv"),
        *holder,
        TensorSpec(f"{at}.norm.weight", (b.inner,), ("mamba_inner",), "mamba", "norm"),
        linear_weight(f"{at}.out_proj", hidden, inner, "mamba"),
    )


def _delta_net(branch: Branch, family: str) -> tuple[TensorSpec, ...]:
    """`CPAwareGatedDeltaNet`, `Qwen3NextFp32GatedDeltaNet`: A_log and dt_bias in a module of their own, in fp32."""
    b: Any = branch.block
    at, hidden, heads = branch.name, (b.hidden, "hidden"), b.num_value_heads
    parts = (("qkvz", b.conv_dim + b.values), ("ba", 2 * heads)) if b.joint else (
        ("qkv", b.conv_dim), ("z", b.values), ("b", heads), ("a", heads))
    projections = tuple(linear_weight(f"{at}.in_proj_{part}", (size, "delta_in"), hidden, "delta_net")
                        for part, size in parts)
    return (
        TensorSpec(f"{at}.conv1d.weight", (b.conv_dim, 1, b.conv_kernel), ("delta_conv", "one", "kernel"), "delta_net",
                   "conv"),
        *(projections if b.joint else ()),
        TensorSpec(f"{at}.norm.weight", (b.value_dim,), ("value_dim",), "delta_net", "norm"),
        linear_weight(f"{at}.out_proj", hidden, (b.values, "value_heads"), "delta_net"),
        *(() if b.joint else projections),
        *(TensorSpec(f"{at}._fp32_params.{name}", (heads,), ("value_heads",), "delta_net", stored="fp32")
          for name in ("A_log", "dt_bias")),
    )


def _attention(branch: Branch, family: str) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    hidden, q, kv = (b.hidden, "hidden"), (b.q_size, "heads"), (b.kv_size, "heads")
    at, size = branch.name, b.value or b.head_dim
    specs = []
    asked = (2 * q[0], q[1]) if b.gated else q
    for part, out in (("q", asked), ("k", kv), ("v", (b.num_kv_heads * size, "heads"))):
        specs.append(linear_weight(f"{at}.{part}_proj", out, hidden, "attention"))
        if b.bias:
            specs.append(TensorSpec(f"{at}.{part}_proj.bias", (out[0],), (out[1],), "attention", "bias"))
    specs.append(linear_weight(f"{at}.o_proj", hidden, (b.num_heads * size, "heads"), "attention"))
    if b.bias == "all":
        specs.append(TensorSpec(f"{at}.o_proj.bias", (b.hidden,), ("hidden",), "attention", "bias"))
    if b.sinks and is_eager_sparse(family):
        specs.append(TensorSpec(f"{at}.attention_sink_bias", (b.num_heads,), ("heads",), "attention", stored="fp32",
                                is_buffer=True, trainable=False))
    elif b.sinks:
        specs.insert(0, TensorSpec(f"{at}.sinks", (b.num_heads,), ("heads",), "attention"))
    norms = (("q_norm", q[0]), ("k_norm", kv[0])) if b.qk_norm else ()
    for name, size in norms:
        found = (size, "heads") if b.whole_norms else (b.head_dim, "head_dim")
        specs.append(TensorSpec(f"{at}.{name}.weight", found[:1], found[1:], "norms", "norm"))
    if b.head_gates:
        specs.append(linear_weight(f"{at}.g_proj", (b.num_heads, "heads"), hidden, "attention"))
    return tuple(specs)


def _latent(branch: Branch, family: str) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    at, hidden, q = branch.name, (b.hidden, "hidden"), (b.q_size, "heads")
    direct = (linear_weight(f"{at}.q_proj", q, hidden, "attention"),)
    low = (b.q_rank, "q_rank")
    compressed = (
        linear_weight(f"{at}.q_a_proj", low, hidden, "attention"),
        TensorSpec(f"{at}.q_a_layernorm.weight", (b.q_rank,), ("q_rank",), "norms", "norm"),
        linear_weight(f"{at}.q_b_proj", q, low, "attention"),
    )
    return (
        *(compressed if b.q_rank else direct),
        linear_weight(f"{at}.kv_a_proj_with_mqa", (b.kv_rank + b.rope, "kv_rank"), hidden, "attention"),
        TensorSpec(f"{at}.kv_a_layernorm.weight", (b.kv_rank,), ("kv_rank",), "norms", "norm"),
        linear_weight(f"{at}.kv_b_proj", (b.kv_size, "heads"), (b.kv_rank, "kv_rank"), "attention"),
        linear_weight(f"{at}.o_proj", hidden, (b.out_size, "heads"), "attention"),
        *indexer_tensors(f"{at}.indexer", b),
    )


def _compressed(branch: Branch, family: str) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    return tuple(attention_tensors(branch.name, b))


def _mlp(branch: Branch, family: str) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    dense = family in ("llama", "qwen2", "qwen3") or shares_in_layer(family)
    return _mlp_at(branch.name, b.hidden, (b.ffn, "ffn"), "mlp", gated=b.gated, gate_first=dense)


def _mlp_at(at: str, hidden: int, ffn: tuple[int, str], component: str, *, gated: bool,
            gate_first: bool) -> tuple[TensorSpec, ...]:
    up = linear_weight(f"{at}.up_proj", ffn, (hidden, "hidden"), component)
    gate = linear_weight(f"{at}.gate_proj", ffn, (hidden, "hidden"), component)
    down = linear_weight(f"{at}.down_proj", (hidden, "hidden"), ffn, component)
    if not gated:
        return up, down
    return (gate, up, down) if gate_first else (up, gate, down)


def _moe(branch: Branch, family: str) -> tuple[TensorSpec, ...]:
    b: Any = branch.block
    at, experts = "moe" if shares_in_layer(family) else branch.name, b.num_experts
    up, (size, seen) = b.expert_ffn * (2 if b.gated else 1), (b.expert_hidden, "latent" if b.latent else "hidden")
    # Routing on a bf16 bias would choose other experts: upstream pins this buffer to fp32 (`moe/layers.py`, Gate).
    correction = TensorSpec(f"{at}.gate.e_score_correction_bias", (experts,), ("experts_router",), "router", "router",
                            "fp32", is_buffer=True, trainable=False)
    specs = [
        TensorSpec(f"{at}.gate.weight", (experts, b.hidden), ("experts_router", "hidden"), "router", "router",
                   "fp32" if family in SPARSE and SPARSE[family].wide_gate else ""),
        *((correction,) if _is_corrected(b, family) else ()),
        *((TensorSpec(f"{at}.gate.tid2eid", (b.table, b.top_k), ("vocab", "top_k"), "router", "router", "int64",
                      is_buffer=True, trainable=False),) if b.table else ()),
        *((TensorSpec(f"{at}.gate.bias", (experts,), ("experts_router",), "router", "router"),) if b.bias else ()),
        TensorSpec(f"{at}.experts.gate_and_up_projs", (experts, size, up), ("experts", seen, "expert_ffn"),
                   "routed_experts", "grouped"),
        TensorSpec(f"{at}.experts.down_projs", (experts, b.expert_ffn, size), ("experts", "expert_ffn", seen),
                   "routed_experts", "grouped"),
    ]
    if b.bias:
        specs += [TensorSpec(f"{at}.experts.{name}_proj_bias", (experts, width), ("experts", dim), "routed_experts",
                             "bias") for name, width, dim in (("gate_up", up, "expert_ffn"), ("down", size, seen))]
    if b.shared_ffn:
        shared = (b.shared_ffn, "shared_ffn")
        name, first = ("share_expert", True) if shares_in_layer(family) else (f"{at}.shared_experts", False)
        specs += _mlp_at(name, b.hidden, shared, "shared_experts", gated=b.gated, gate_first=first)
    if b.shared_gate:
        specs.append(linear_weight(f"{at}.shared_expert_gate", (1, "one"), (b.hidden, "hidden"), "shared_experts"))
    if b.latent:
        hidden, latent = (b.hidden, "hidden"), (b.latent, seen)
        specs += [linear_weight(f"{at}.fc1_latent_proj", latent, hidden, "latent_projections"),
                  linear_weight(f"{at}.fc2_latent_proj", hidden, latent, "latent_projections")]
    return tuple(specs)


def _is_corrected(block: Moe, family: str) -> bool:
    """True for a router whose choice a buffer corrects."""
    rooted = block.router == "sqrtsoftplus" and not block.table
    return block.router == "sigmoid" or rooted or (family in SPARSE and SPARSE[family].corrects)


_BRANCH: Final[dict[type, Callable[[Branch, str], tuple[TensorSpec, ...]]]] = {
    Mamba2: _mamba, GatedDeltaNet: _delta_net, Attention: _attention, LatentAttention: _latent, Mlp: _mlp, Moe: _moe,
    CompressedAttention: _compressed,
}
