"""The indexer that chooses keys: its parameters, and in NeMo Automodel's DeepSeek-V3.2 and GLM-5 what it computes.

Parameters: transformers 5.23 `models/deepseek_v32/modeling_deepseek_v32.py` (DeepseekV32Indexer), `models/glm_moe_dsa`;
Automodel names them alike. Nothing is derived by them: transformers scores without gradients, and indices of the best
scores, which are whole numbers, have none in Automodel either. They are stored and gathered, and have no gradients.

nemo-automodel 0.7.0 `components/models/{deepseek_v32,glm_moe_dsa}/layers.py`: `forward` of DeepseekV32Indexer and
GlmMoeDsaIndexer, and `_build_sparse_mask`, with `attn: sdpa`. Scores of every query and key are whole, in fp32: of all
heads at once. Their graph, which no gradient goes through, lives until the indices are there; in a checkpoint's first
pass there is none. DeepSeek's keys and queries are turned by a Hadamard matrix, by torch where the kernel of
fast_hadamard_transform, which no package of Automodel's asks for, is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from simcore.models.blocks import Indexer, LatentAttention
from simcore.models.tensor import TensorSpec
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["Projections", "chosen_keys", "indexer_tensors", "number_mask", "truth_mask", "turned_heads"]

_TRUTH = "uint8"
"""Type with the size of torch's truth values."""


def indexer_tensors(path: str, block: LatentAttention) -> Iterator[TensorSpec]:
    """The indexer at `path`: parameters without a gradient, in registration order; none of a block without its own."""
    index = block.indexer
    if index is None or index.borrows:
        return
    for name, out, into in (("wq_b", (index.num_heads * index.head_dim, "index_heads"), (block.q_rank, "q_rank")),
                            ("wk", (index.head_dim, "index_dim"), (block.hidden, "hidden"))):
        yield _linear(f"{path}.{name}", out, into)
    for name, role in (("weight", "norm"), ("bias", "bias")):
        yield TensorSpec(f"{path}.k_norm.{name}", (index.head_dim,), ("index_dim",), "norms", role, trainable=False)
    yield _linear(f"{path}.weights_proj", (index.num_heads, "index_heads"), (block.hidden, "hidden"))


def _linear(path: str, out: tuple[int, str], into: tuple[int, str]) -> TensorSpec:
    return TensorSpec(f"{path}.weight", (out[0], into[0]), (out[1], into[1]), "attention", "linear", trainable=False)


@dataclass(frozen=True, slots=True)
class Projections:
    """Products of an indexer, each made when it is called, and its norm's weight and bias.

    `query`: [batch, sequence, heads x d]; `key`: [batch, sequence, d]; `weights`: [batch, sequence, heads].
    """

    query: Callable[[], Tensor]
    key: Callable[[], Tensor]
    weights: Callable[[], Tensor]
    norm: tuple[Param, Param]


def chosen_keys(tape: Tape, made: Projections, index: Indexer, rope: int) -> Tensor:
    """Indices, int64 [batch, sequence, top_k or fewer], of the keys that each query sees.

    `rope`: dimensions of a head that are rotated. A Hadamard matrix turns keys in DeepSeek-V3.2 alone, not in GLM-5.
    """
    query = made.query()
    batch, seq, _ = query.shape
    query = query.view(batch, seq, index.num_heads, index.head_dim)
    key = aten.layer_norm(tape, made.key(), *made.norm, "index_norm").view(batch, seq, 1, index.head_dim)
    score = _deepseek_scores if index.hadamard else partial(_glm_scores, interleaves=index.interleaves)
    scores, *_named = score(tape, query, key, made.weights, rope)
    _values, indices = aten.topk(tape, scores, min(index.top_k, seq))
    return Tensor(indices.storage, indices.shape, "int64", None)


# ---- GLM-5 ------------------------------------------------------------------------------------------------------
def _glm_scores(tape: Tape, q: Tensor, k: Tensor, weigh: Callable[[], Tensor], rope: int, *,
                interleaves: bool) -> list[Tensor]:
    """Scores [batch, sequence, sequence] without those of later keys, and what `forward` names beside them.

    `q` [batch, sequence, heads, d], `k` [batch, sequence, 1, d].
    """
    batch, seq, heads, size = q.shape
    query, key, *_parts = turned_heads(tape, q, k, rope, interleaves=interleaves)
    weights = aten.mul_scalar(tape, aten.cast(tape, weigh(), "fp32"))
    scores = aten.product(tape, aten.cast(tape, query, "fp32"), aten.cast(tape, key, "fp32"),
                          (batch, seq, heads, seq), size, "index_scores")
    for _ in range(2):  # scaled and cut at zero in place
        tape.compute(Kernel.ELEMENTWISE, scores.numel, 2 * scores.nbytes)
    total = aten.product(tape, scores, weights, (batch, seq, seq), heads, "index_scores_of_heads")
    del scores
    later = _later(tape, seq)
    total = aten.masked_fill(tape, total, later)
    return [total, later, weights, query, key, *_parts]


def turned_heads(tape: Tape, q: Tensor, k: Tensor, rope: int, *, interleaves: bool) -> list[Tensor]:
    """Query [b, s, heads, d] and key [b, s, 1, d] with their first `rope` dimensions rotated, and what they join.

    `interleaves`: by the kernel that rotates attention's heads (`rope_utils.py`, apply_rotary_emb), else by halves.
    """
    turned = _turned_at_once if interleaves else _turned
    rest = q.shape[3] - rope
    turned_query, plain_query = aten.split(tape, q, (rope, rest))
    turned_key, plain_key = aten.split(tape, k, (rope, rest))
    turned_query = turned(tape, turned_query)
    turned_key = turned(tape, turned_key)
    joined = [aten.cat(tape, turned_query, plain_query), aten.cat(tape, turned_key, plain_key)]
    return [*joined, turned_query, turned_key, plain_query, plain_key]


def _turned_at_once(tape: Tape, x: Tensor) -> Tensor:
    out = new(tape, x.shape, x.dtype, "index_rotary", x.nbytes)
    out.node = tape.node((x,), (), _nothing)
    return out


def _turned(tape: Tape, x: Tensor) -> Tensor:
    """`_apply_index_rope_half_split` of x [b, s, heads, rope] in its own type."""
    table = (*x.shape[:2], 1, x.shape[3] // 2)
    cos, sin = (new(tape, table, x.dtype, f"index_{name}", 2 * 4 * x.shape[0] * x.shape[1]) for name in ("cos", "sin"))
    first, second = aten.chunk(tape, x)
    return aten.cat(tape, aten.sub(tape, aten.mul(tape, first, cos), aten.mul(tape, second, sin)),
                    aten.add(tape, aten.mul(tape, second, cos), aten.mul(tape, first, sin)))


def _later(tape: Tape, seq: int) -> Tensor:
    """Truth values [sequence, sequence] of keys that come after a query."""
    ones = new(tape, (seq, seq), _TRUTH, "ones")
    return new(tape, (seq, seq), _TRUTH, "later_keys", ones.nbytes)


# ---- DeepSeek-V3.2 ----------------------------------------------------------------------------------------------
def _deepseek_scores(tape: Tape, q: Tensor, k: Tensor, weigh: Callable[[], Tensor], rope: int) -> list[Tensor]:
    """Scores [batch, sequence, sequence] of all keys, later ones too, and what `forward` names beside them.

    `q` [batch, sequence, heads, d], `k` [batch, sequence, 1, d].
    """
    batch, seq, heads, size = q.shape
    turned_query, plain_query = aten.split(tape, q, (rope, size - rope))
    turned_query = _turned_wide(tape, turned_query)
    turned_key, plain_key = aten.split(tape, k, (rope, size - rope))
    turned_key = _turned_wide(tape, turned_key)
    query, key = aten.cat(tape, turned_query, plain_query), aten.cat(tape, turned_key, plain_key)
    query = _rotated(tape, query)
    key = _rotated(tape, key)
    weights = aten.cast(tape, weigh(), "fp32")
    weights = aten.mul_scalar(tape, weights)
    weights = aten.mul_scalar(tape, weights)
    scores = aten.relu(tape, _products(tape, query, key))
    scores = aten.mul(tape, scores, weights.view(batch, heads, seq, 1))
    total = new(tape, (batch, seq, seq), "fp32", "index_scores_of_heads", scores.nbytes)
    total.node = tape.node((scores,), (), _nothing)
    del scores
    return [total, weights, query, key, turned_query, turned_key, plain_query, plain_key]


def _products(tape: Tape, query: Tensor, key: Tensor) -> Tensor:
    """Products [batch, heads, sequence, sequence] of all queries and keys in fp32."""
    batch, seq, heads, size = query.shape
    wide_query, wide_key = aten.cast(tape, query, "fp32"), _wide_keys(tape, key, heads)
    # Heads of several sequences do not lie one behind the other.
    by_heads = aten.contiguous(tape, wide_query, "index_queries") if batch > 1 else wide_query
    return aten.product(tape, by_heads, wide_key, (batch, heads, seq, seq), size, "index_scores")


def _wide_keys(tape: Tape, key: Tensor, heads: int) -> Tensor:
    """The key [b, s, 1, d] in fp32, written out for every head."""
    batch, seq, _, size = key.shape
    out = new(tape, (batch, heads, seq, size), "fp32", "index_keys", key.nbytes)
    out.node = tape.node((key,), (), _nothing)
    return out


def _nothing(tape: Tape, grads: Grads, saved: Saved) -> Grads:
    raise AssertionError("no gradient comes from indices")


def _turned_wide(tape: Tape, x: Tensor) -> Tensor:
    """`apply_rotary_emb_half_split` of x [b, s, heads, rope]: in fp32 by views of the stem's table, then cast back."""
    first, second = aten.chunk(tape, aten.cast(tape, x, "fp32"))
    wide = aten.cat(tape, aten.sub(tape, aten.mul_scalar(tape, first), aten.mul_scalar(tape, second)),
                    aten.add(tape, aten.mul_scalar(tape, second), aten.mul_scalar(tape, first)))
    return aten.cast(tape, wide, x.dtype)


def _rotated(tape: Tape, x: Tensor) -> Tensor:
    """`hadamard_transform_torch` of x [..., d]: log2(d) sums, differences and concatenations, and a scale."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    for _ in range(x.shape[-1].bit_length() - 1):
        even, odd = aten.chunk(tape, x)
        x = aten.cat(tape, aten.add(tape, even, odd).view(*half), aten.sub(tape, even, odd).view(*half))
        del even, odd
    return aten.mul_scalar(tape, x)


# ---- the mask ---------------------------------------------------------------------------------------------------
def truth_mask(tape: Tape, indices: Tensor) -> Tensor:
    """Truth values [batch, 1, sequence, sequence] of the chosen keys (DeepSeek-V3.2)."""
    batch, seq, _ = indices.shape
    mask = new(tape, (batch, 1, seq, seq), _TRUTH, "chosen_mask")
    tape.compute(Kernel.ELEMENTWISE, indices.numel, indices.nbytes + indices.numel)
    return mask


def number_mask(tape: Tape, indices: Tensor, dtype: str) -> Tensor:
    """Numbers of `dtype` [batch, 1, sequence, sequence] that leave the chosen keys (GLM-5)."""
    batch, seq, _ = indices.shape
    mask = new(tape, (batch, 1, seq, seq), dtype, "chosen_mask")
    tape.compute(Kernel.ELEMENTWISE, indices.numel, indices.nbytes + 2 * indices.numel)
    later = _later(tape, seq)
    tape.compute(Kernel.ELEMENTWISE, mask.numel, 2 * mask.nbytes + later.nbytes)
    return mask
