"""Compressed keys of DeepSeek-V4: one of several tokens, weighed by a softmax, and the indexer that chooses among them.

nemo-automodel 0.7.0 `components/models/deepseek_v4/layers.py`, DeepseekV4Compressor, DeepseekV4Indexer, _pool_windows
and _overlap_transform. Products and weights are in fp32. The indexer's scores are of all heads, queries and compressed
keys at once; their graph, which no gradient goes through, lives until the choice is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcore.models.blocks import CompressedAttention
from simcore.operators.automodel.compressed.kernels import scores_by_kernel
from simcore.operators.automodel.compressed.modules import Modules
from simcore.operators.automodel.compressed.pieces import copied_back, held_number, part, summed, write
from simcore.operators.automodel.compressed.rotation import tables_of_keys, turned
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.recording.tape import Tape, Tensor

__all__ = ["Compressed", "compressed_keys", "limits"]

_TRUTH = "uint8"
"""Type with the size of torch's truth values."""


@dataclass(slots=True)
class Compressed:
    """`keys` [b, keys, d] of windows of tokens; `chosen`: int64 [b, s, chosen], those that a query sees, None for all.

    `held`: what a cache names ([Note: what a cache holds] in `attention`).
    """

    keys: Tensor
    chosen: Tensor | None
    held: list[Tensor]


def compressed_keys(at: Modules, x: Tensor, low: Tensor, block: CompressedAttention, path: str) -> Compressed:
    """Compressed keys of the tokens `x` [b, s, hidden]. `low`: the query's narrow form; `path`: of the compressor."""
    tape, (batch, seq, _) = at.tape, x.shape
    # Named until it returns: the input in fp32, positions and tables.
    named, held, keys = _pooled(at, x, block, path, block.head_dim)
    if block.indexer is None:
        return Compressed(keys, None, held)
    best = _chosen(at, x, low, block, held, f"{path}.indexer")
    after = limits(tape, batch, seq)
    late = new(tape, best.shape, _TRUTH, "is_later", best.nbytes)
    nowhere = new(tape, best.shape, "int64", "nowhere")
    chosen = new(tape, best.shape, "int64", "chosen_keys", 2 * best.nbytes)
    del after, late, nowhere, named
    return Compressed(keys, chosen, held)


def limits(tape: Tape, batch: int, seq: int) -> Tensor:
    """Number of compressed keys that each query may see, int64 [b, s]."""
    moved = new(tape, (batch, seq), "int64", "limits")
    return new(tape, (batch, seq), "int64", "limits", moved.nbytes)


def _pooled(at: Modules, x: Tensor, block: CompressedAttention, path: str, size: int) -> tuple[
        list[Tensor], list[Tensor], Tensor]:
    """(what a module names, what its cache names, its rotated compressed keys [b, keys, size])."""
    tape, (batch, seq, _) = at.tape, x.shape
    count = seq // block.every
    wide = aten.cast(tape, x, "fp32")
    keys, gates = _product(at, wide, f"{path}.wkv"), _product(at, wide, f"{path}.wgate")
    if block.indexer is None and at.units and at.agrees:
        _agree(tape)
    made = _normed(at, wide, (keys, gates), block, path, size)
    named = tables_of_keys(tape, batch, count, block.rope, x.dtype)
    made = turned(tape, made.view(batch, 1, count, size), block.rope, batch, count).view(batch, count, size)
    return [wide, *named], [keys, gates], made


def _agree(tape: Tape) -> None:
    """`_compute_fsdp_group_has_complete_hca_window`: one number, whose maximum over ranks the host reads."""
    flag = tape.empty((), "int32", "has_key")
    tape.collective("all_reduce", "dp_shard_cp", flag.nbytes, "int32")
    tape.stop()


def _product(at: Modules, x: Tensor, path: str) -> Tensor:
    """The linear layer at `path`; that of an indexer, whose gradient never comes, keeps its input like others."""
    is_trained = at.param("self_attn.wq_a.weight").trainable
    weight = replace(at.param(f"{path}.weight"), trainable=is_trained)
    (out,) = at.inside(path, x, lambda given: [aten.linear(at.tape, given, weight, path.rpartition(".")[2])])
    return out


def _normed(at: Modules, wide: Tensor, products: tuple[Tensor, Tensor], block: CompressedAttention, path: str,
            size: int) -> Tensor:
    """The norm of what windows of tokens are pooled to, [b, keys, size]; keys left over are in none."""
    keys, gates = products
    tape, (batch, seq, width) = at.tape, keys.shape
    rows = seq // block.every * block.every
    if rows != seq:
        keys, gates = part(tape, keys, (batch, rows, width)), part(tape, gates, (batch, rows, width))
    places = held_number(at, f"{path}.ape_param", wide)
    total = _pool(tape, keys, gates, places, block, size)
    del keys, gates, places
    total = aten.cast(tape, total, at.run.compute)
    return at.norm(total, f"{path}.kv_norm")


def _pool(tape: Tape, keys: Tensor, gates: Tensor, places: Tensor, block: CompressedAttention, size: int) -> Tensor:
    """`_pool_windows`: the sum [b, keys, size] of a window's keys by the softmax of their gates."""
    batch, rows, width = keys.shape
    count, every = rows // block.every, block.every
    keys = keys.view(batch, count, every, width)
    if batch * count == 1:  # a sum over one window is a copy
        places = copied_back(tape, places, places.shape, "grad_sum_to_size")
    gates = aten.add(tape, gates.view(batch, count, every, width), places)
    if block.overlaps:
        keys, gates = _overlapping(tape, keys, size), _overlapping(tape, gates, size)
        gates, _masked = _unmasked(tape, gates)
        every *= 2
    weighed = aten.mul(tape, keys, aten.softmax(tape, gates), "weighed")
    total = summed(tape, weighed, (batch, count, size))
    del weighed
    return total


def _overlapping(tape: Tape, x: Tensor, size: int) -> Tensor:
    """Windows [b, n, 2 x every, size] of a token's second half, and of the first half in the window before."""
    batch, count, every, width = x.shape
    out = new(tape, (batch, count, 2 * every, size), x.dtype, "windows")
    own = part(tape, x, (batch, count, every, size))
    before = part(tape, part(tape, x, (batch, count - 1, every, width)), (batch, count - 1, every, size))
    write(tape, out, own)
    write(tape, out, before)
    return out


def _unmasked(tape: Tape, gates: Tensor) -> tuple[Tensor, Tensor]:
    """Gates without windows of which none may be seen, and a mask of those, which the caller names."""
    shape, dtype, moved = gates.shape, gates.dtype, 2 * gates.nbytes
    batch, count, _, size = shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _zero = tape.empty((), dtype, "zero")
        return [new(tape, shape, dtype, "grad_where", moved)]

    found = new(tape, shape, _TRUTH, "is_masked", gates.nbytes)
    mask = new(tape, (batch, count, 1, size), _TRUTH, "all_masked", found.nbytes)
    del found
    zeros = new(tape, shape, dtype, "zeros")
    node = tape.node((gates,), (mask,), backward)
    out = new(tape, shape, dtype, "gates", moved)
    del zeros
    out.node = node
    return out, mask


# ---- the indexer --------------------------------------------------------------------------------------------------
def _chosen(at: Modules, x: Tensor, low: Tensor, block: CompressedAttention, held: list[Tensor], path: str) -> Tensor:
    """Numbers, int64 [b, s, chosen], of the compressed keys with the best scores for each query.

    `held`: takes what a cache names.
    """
    tape, (batch, seq, _), index = at.tape, x.shape, block.indexer
    assert index is not None
    named, products, keys = _pooled(at, x, block, path, index.head_dim)
    held += [*products, keys]
    del named[2:]  # the variables of its tables are those of the query's then
    query = at.linear(low, f"{path}.wq_b").view(batch, index.num_heads, seq, index.head_dim)
    query = turned(tape, query, block.rope, batch, seq)
    weights = aten.mul_scalar(tape, aten.cast(tape, at.linear(x, f"{path}.weights_proj"), "fp32"))
    scores = (scores_by_kernel if at.by_kernels else _scores)(tape, query, keys, weights)
    count = keys.shape[1]
    _after, _places = limits(tape, batch, seq), new(tape, (count,), "int64", "positions")
    scores = _seen(tape, scores)

    def best() -> tuple[Tensor, ...]:
        return aten.topk(tape, scores, min(index.top_k, count))

    indices = at.kept("index_topk", best)[1]
    return Tensor(indices.storage, indices.shape, "int64", None)


def _scores(tape: Tape, query: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """`indexer_scores_torch`: [b, s, keys] of the query [b, heads, s, d] and keys [b, keys, d]."""
    batch, heads, seq, size = query.shape
    count = keys.shape[1]
    given = [aten.cast(tape, x, "fp32") for x in (query, keys)]  # gone when the product is there
    scores = aten.product(tape, given[0], _for_each_query(tape, given[1], seq), (batch, seq, heads, count), size,
                          "index_scores")
    given.clear()
    scores = aten.mul_scalar(tape, aten.relu(tape, scores))
    weighed = aten.mul(tape, scores, weights.view(batch, seq, heads, 1))
    total = summed(tape, weighed, (batch, seq, count))
    del weighed
    return total


def _for_each_query(tape: Tape, keys: Tensor, seq: int) -> Tensor:
    """Keys of a sequence for each of its queries: written out, but for a single sequence."""
    batch, count, size = keys.shape
    node = tape.node((keys,), (), _nothing)
    if batch == 1:
        return Tensor(keys.storage, (batch, seq, count, size), "fp32", node)
    out = new(tape, (batch, seq, count, size), "fp32", "keys_of_queries", keys.nbytes)
    out.node = node
    return out


def _seen(tape: Tape, scores: Tensor) -> Tensor:
    """Scores without those of later keys."""
    mask = new(tape, scores.shape, _TRUTH, "is_seen")
    _never = tape.empty((), "fp32", "minus_infinity")
    node = tape.node((scores,), (mask,), _nothing)
    out = new(tape, scores.shape, "fp32", "seen_scores", scores.nbytes + mask.nbytes)
    out.node = node
    return out


def _nothing(tape: Tape, grads: Grads, saved: Saved) -> Grads:
    raise AssertionError("no gradient comes from a choice")
