"""Parameters and buffers of DeepSeek-V4's layers, as nemo-automodel 0.7.0 registers them.

`components/models/deepseek_v4/{model,layers}.py`: DeepseekV4Block and its modules. Sinks, products of the compressor
and the indexer, biases of positions, and what mixes residual streams are fp32 from the start, and so is the head. What
an indexer has is gathered and gets no gradient: a choice has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.models.blocks import CompressedAttention, FinalNorm, LayerKind
from simcore.models.tensor import TensorSpec, linear_weight

__all__ = ["attention_tensors", "end_tensors", "stream_tensors"]

_STREAMS: Final = "residual_streams"


def attention_tensors(at: str, block: CompressedAttention) -> Iterator[TensorSpec]:
    """The attention module at path `at`."""
    hidden, low = (block.hidden, "hidden"), (block.q_rank, "q_rank")
    heads, groups = (block.q_size, "heads"), (block.groups * block.group_rank, "groups")
    yield linear_weight(f"{at}.wq_a", low, hidden, "attention")
    yield _norm(f"{at}.q_norm", *low)
    yield linear_weight(f"{at}.wq_b", heads, low, "attention")
    yield linear_weight(f"{at}.wkv", (block.head_dim, "head_dim"), hidden, "attention")
    yield _norm(f"{at}.kv_norm", block.head_dim, "head_dim")
    yield linear_weight(f"{at}.wo_a", groups, (block.group_size, "group_heads"), "attention")
    yield linear_weight(f"{at}.wo_b", hidden, groups, "attention")
    yield _wide(f"{at}.sinks_param.weight", (block.num_heads,), ("heads",), "attention")
    if block.every:
        yield from _compressor(f"{at}.compressor", block, block.head_dim, trained=True)
    if block.indexer is not None:
        yield from _indexer(f"{at}.compressor.indexer", block)


def stream_tensors(kind: LayerKind) -> Iterator[TensorSpec]:
    """Weights that mix the residual streams of a layer, before and behind each of its two blocks."""
    assert kind.streams is not None
    count = kind.streams.count
    weights = (2 + count) * count
    for at in ("attn_hc", "ffn_hc"):
        yield _wide(f"{at}.fn", (weights, count * kind.hidden), ("streams_weights", "streams_hidden"), _STREAMS)
        yield _wide(f"{at}.base", (weights,), ("streams_weights",), _STREAMS)
        yield _wide(f"{at}.scale", (3,), ("three",), _STREAMS)


def end_tensors(block: FinalNorm) -> Iterator[TensorSpec]:
    """Weights that sum the streams behind the layers, and those of the norm of that."""
    wide = (block.streams, block.streams * block.hidden)
    yield _wide("model.hc_head.hc_fn", wide, ("streams", "streams_hidden"), _STREAMS)
    yield _wide("model.hc_head.hc_base", wide[:1], ("streams",), _STREAMS)
    yield _wide("model.hc_head.hc_scale", (1,), ("one",), _STREAMS)
    yield _norm("model.norm", block.hidden, "hidden")


def _compressor(at: str, block: CompressedAttention, size: int, *, trained: bool) -> Iterator[TensorSpec]:
    """Keys and gates of each token; of an overlapping one, for two windows."""
    width, hidden = ((1 + block.overlaps) * size, "compressed"), (block.hidden, "hidden")
    for name in ("wkv", "wgate"):
        yield TensorSpec(f"{at}.{name}.weight", (width[0], hidden[0]), (width[1], hidden[1]), "attention", "linear",
                         "fp32", trainable=trained)
    yield _wide(f"{at}.ape_param.weight", (block.every, width[0]), ("window", width[1]), "attention", trained=trained)
    yield _norm(f"{at}.kv_norm", size, "head_dim", trained=trained)


def _indexer(at: str, block: CompressedAttention) -> Iterator[TensorSpec]:
    index = block.indexer
    assert index is not None
    yield from _compressor(at, block, index.head_dim, trained=False)
    for name, out, into in (("wq_b", (index.num_heads * index.head_dim, "index_heads"), (block.q_rank, "q_rank")),
                            ("weights_proj", (index.num_heads, "index_heads"), (block.hidden, "hidden"))):
        yield TensorSpec(f"{at}.{name}.weight", (out[0], into[0]), (out[1], into[1]), "attention", "linear",
                         trainable=False)


def _norm(path: str, size: int, dim: str, *, trained: bool = True) -> TensorSpec:
    return TensorSpec(f"{path}.weight", (size,), (dim,), "norms", "norm", trainable=trained)


def _wide(name: str, shape: tuple[int, ...], dims: tuple[str, ...], component: str, *,
          trained: bool = True) -> TensorSpec:
    return TensorSpec(name, shape, dims, component, stored="fp32", trainable=trained)
