"""Parameters and buffers of DeepSeek-V4, as transformers 5.23 registers them.

`models/deepseek_v4/modeling_deepseek_v4.py`: DeepseekV4DecoderLayer and its modules. Norms, biases of positions, sinks
and what mixes residual streams stay in fp32 (`_keep_in_fp32_modules_strict`).

[Note: parameters without a gradient]
The choice of keys has none: of an indexer's parameters all are gathered and none is trained. Of a router that reads a
table, the product still weighs its experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.models.blocks import Branch, CompressedAttention, FinalNorm, LayerKind, Moe
from simcore.models.tensor import TensorSpec

__all__ = ["end_tensors", "layer_tensors"]

_STREAMS: Final = "residual_streams"


def layer_tensors(kind: LayerKind) -> Iterator[TensorSpec]:
    """Tensors of a decoder layer with attention over compressed keys, then experts."""
    attention, experts = kind.branches
    yield from _attention(attention.name, attention.block)
    yield from _experts(experts.name, experts.block)
    for branch in kind.branches:
        yield _norm(branch.norm, kind.hidden, "hidden")
    assert kind.streams is not None
    for name in ("attn_hc", "ffn_hc"):
        yield from _mixing(f"{name}.", kind.streams.count, kind.hidden)


def end_tensors(block: FinalNorm) -> Iterator[TensorSpec]:
    """Tensors of the norm behind the layers, and of what sums the streams before it."""
    yield _norm("norm", block.hidden, "hidden")
    wide = (block.streams, block.streams * block.hidden)
    yield _wide("hc_head.hc_fn", wide, ("streams", "streams_hidden"), _STREAMS)
    yield _wide("hc_head.hc_base", wide[:1], ("streams",), _STREAMS)
    yield _wide("hc_head.hc_scale", (1,), ("one",), _STREAMS)


def _mixing(at: str, count: int, hidden: int) -> Iterator[TensorSpec]:
    """`DeepseekV4HyperConnection`: weights of each stream before and behind a block, and of each pair of them."""
    weights = (2 + count) * count
    yield _wide(f"{at}fn", (weights, count * hidden), ("streams_weights", "streams_hidden"), _STREAMS)
    yield _wide(f"{at}base", (weights,), ("streams_weights",), _STREAMS)
    yield _wide(f"{at}scale", (3,), ("three",), _STREAMS)


def _attention(at: str, block: Branch | object) -> Iterator[TensorSpec]:
    assert isinstance(block, CompressedAttention)
    hidden, rank = (block.hidden, "hidden"), (block.q_rank, "q_rank")
    heads, groups = (block.q_size, "heads"), (block.groups * block.group_rank, "groups")
    yield _wide(f"{at}.sinks", (block.num_heads,), ("heads",), "attention")
    yield _linear(f"{at}.q_a_proj", rank, hidden)
    yield _norm(f"{at}.q_a_norm", *rank)
    yield _linear(f"{at}.q_b_proj", heads, rank)
    yield _linear(f"{at}.kv_proj", (block.head_dim, "head_dim"), hidden)
    yield _norm(f"{at}.kv_norm", block.head_dim, "head_dim")
    yield _linear(f"{at}.o_a_proj", groups, (block.group_size, "group_heads"))
    yield _linear(f"{at}.o_b_proj", hidden, groups)
    if block.every:
        yield from _compressor(f"{at}.compressor", block, block.head_dim, trained=True)
    if block.indexer is not None:
        yield from _indexer(f"{at}.compressor.indexer", block)


def _compressor(at: str, block: CompressedAttention, size: int, *, trained: bool) -> Iterator[TensorSpec]:
    """Keys and gates of each token; of an overlapping one, for two windows."""
    width, hidden = ((1 + block.overlaps) * size, "compressed"), (block.hidden, "hidden")
    yield _wide(f"{at}.position_bias", (block.every, width[0]), ("window", width[1]), "attention", trained=trained)
    yield _linear(f"{at}.kv_proj", width, hidden, trained=trained)
    yield _linear(f"{at}.gate_proj", width, hidden, trained=trained)
    yield _norm(f"{at}.kv_norm", size, "head_dim", trained=trained)


def _indexer(at: str, block: CompressedAttention) -> Iterator[TensorSpec]:
    index = block.indexer
    assert index is not None
    yield from _compressor(at, block, index.head_dim, trained=False)
    yield _linear(f"{at}.q_b_proj", (index.num_heads * index.head_dim, "index_heads"), (block.q_rank, "q_rank"),
                  trained=False)
    yield _linear(f"{at}.scorer.weights_proj", (index.num_heads, "index_heads"), (block.hidden, "hidden"),
                  trained=False)


def _experts(at: str, block: Branch | object) -> Iterator[TensorSpec]:
    """`DeepseekV4SparseMoeBlock`: router, routed experts, the shared one."""
    assert isinstance(block, Moe)
    hidden, ffn, experts = block.hidden, block.expert_ffn, block.num_experts
    yield TensorSpec(f"{at}.gate.weight", (experts, hidden), ("experts_router", "hidden"), "router", "router")
    if block.table:
        yield TensorSpec(f"{at}.gate.tid2eid", (block.table, block.top_k), ("vocab", "top_k"), "router", "router",
                         "int64", is_buffer=True, trainable=False)
    else:
        yield TensorSpec(f"{at}.gate.e_score_correction_bias", (experts,), ("experts_router",), "router", "router",
                         "fp32", is_buffer=True, trainable=False)
    yield TensorSpec(f"{at}.experts.gate_up_proj", (experts, 2 * ffn, hidden), ("experts", "expert_ffn", "hidden"),
                     "routed_experts", "grouped")
    yield TensorSpec(f"{at}.experts.down_proj", (experts, hidden, ffn), ("experts", "hidden", "expert_ffn"),
                     "routed_experts", "grouped")
    wide = (block.shared_ffn, "ffn")
    for name, out, into in (("gate", wide, (hidden, "hidden")), ("up", wide, (hidden, "hidden")),
                            ("down", (hidden, "hidden"), wide)):
        yield _linear(f"{at}.shared_experts.{name}_proj", out, into, "shared_experts")


def _linear(path: str, out: tuple[int, str], into: tuple[int, str], component: str = "attention", *,
            trained: bool = True) -> TensorSpec:
    return TensorSpec(f"{path}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear", trainable=trained)


def _norm(path: str, size: int, dim: str, *, trained: bool = True) -> TensorSpec:
    return TensorSpec(f"{path}.weight", (size,), (dim,), "norms", "norm", "fp32", trainable=trained)


def _wide(name: str, shape: tuple[int, ...], dims: tuple[str, ...], component: str, *,
          trained: bool = True) -> TensorSpec:
    return TensorSpec(name, shape, dims, component, stored="fp32", trainable=trained)
