"""Attention that reads chosen keys alone, and the choice, by the kernels that NeMo Automodel takes from slime.

nemo-automodel 0.7.0 `components/models/glm_moe_dsa/optimized_kernels.py`, `cp.py`,
`kernels/{indexer,sparse_mla,tilelang_sparse_mla_fwd,tilelang_sparse_mla_bwd}.py`.

[Note: kernels that were read, not run]
Sizes are those that the wrappers of TileLang's kernels allocate; their own workspaces, and that of torch's top-k, are
not known. Scores of the indexer are of all queries and keys of a row, in fp32, of all heads summed; top-k is over at
most 2^25 of them at once, and of a row with more its parts are joined. Attention multiplies all `top_k` keys of a
query, the indexer each pair of a query and an earlier key.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Indexer
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.operators.shared.indexer import Projections, turned_heads
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["as_tensor", "of_all_ranks", "rows_of", "scored_keys", "sparse_attention"]

_AT_ONCE: Final = 1 << 25
"""Scores that one call of top-k takes (`kernels/indexer.py`, _TOPK_MAX_ELEMENTS_PER_CALL)."""


def as_tensor(tape: Tape, param: Param) -> Tensor:
    """A parameter, as an operand whose gradient is the parameter's."""
    node = tape.node((param,), (), lambda tape, grads, saved: list(grads))
    return Tensor(None, param.shape, param.dtype, node)


def rows_of(tape: Tape, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Some rows of each head, a view of `shape`; its gradient is written into zeros of the whole."""
    whole, dtype = weight.shape, weight.dtype
    node = tape.node((weight,), (), lambda tape, grads, saved: [new(tape, whole, dtype, "grad_rows")])
    return Tensor(weight.storage, shape, dtype, node)


def sparse_attention(tape: Tape, q: Tensor, kv: Tensor, indices: Tensor, value: int) -> tuple[Tensor, Tensor]:
    """`SparseMLA` of q [b, s, heads, rank + rope] and kv [b, s, rank + rope]; `value`: the rank.

    Returns [b, s, heads, rank] and log-sums [b, s, heads].
    """
    batch, seq, heads, size = q.shape
    flops = 2 * batch * seq * indices.shape[2] * heads * (size + value)
    q_shape, kv_shape, dtype, moved = q.shape, kv.shape, q.dtype, q.nbytes + kv.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        _of_sums = new(tape, q_shape[:3], "fp32", "grad_log_sums")
        _copy = new(tape, grad.shape, dtype, "grad_contiguous", grad.nbytes, Kernel.COPY)
        made = _gradients(tape)
        return list(made)

    def _gradients(tape: Tape) -> tuple[Tensor, Tensor]:
        _delta = new(tape, q_shape[:3], "fp32", "attention_delta", 2 * moved)
        wide = new(tape, kv_shape, "fp32", "grad_keys")
        to_q = tape.empty(q_shape, dtype, "grad_attention")
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved,
                     shape_of_heads(size, value, batch * seq * heads, backward=True))
        return to_q, new(tape, kv_shape, dtype, "grad_attention", wide.nbytes)

    node = tape.node((q, kv), (), backward)
    out = tape.empty((batch, seq, heads, value), dtype, "attention_latent")
    sums = tape.empty((batch, seq, heads), "fp32", "softmax_statistics")
    tape.compute(Kernel.ATTENTION, flops, moved + out.nbytes, shape_of_heads(size, value, batch * seq * heads))
    tape.save(node, q, kv, indices, out, sums)
    out.node = node
    return out, sums


def scored_keys(tape: Tape, made: Projections, index: Indexer, rope: int, cp: int) -> Tensor:
    """Indices, int32 [b, s, top_k], by `tilelang_indexer_topk`; -1 where there are fewer keys.

    `rope`: dimensions of a head that are rotated; `cp`: ranks that share sequences.
    """
    query = made.query()
    batch, seq, _ = query.shape
    query = query.view(batch, seq, index.num_heads, index.head_dim)
    key = aten.layer_norm(tape, made.key(), *made.norm, "index_norm").view(batch, seq, 1, index.head_dim)
    query, key, *_parts = turned_heads(tape, query, key, rope, interleaves=index.interleaves)
    key = of_all_ranks(tape, cp, key)
    weights = aten.cast(tape, made.weights(), "fp32")
    weights = aten.mul_scalar(tape, weights)
    weights = aten.mul_scalar(tape, weights)
    _bounds = _bounds_of_keys(tape, batch * seq, cp)
    return _best(tape, query, index, cp)


def _bounds_of_keys(tape: Tape, rows: int, cp: int) -> list[Tensor]:
    """First and last key of each query; those of all ranks' queries first, of which a rank takes its own."""
    names = ("first_of_keys", "last_of_keys")
    whole = [tape.empty((rows * cp,), "int64", name) for name in names]
    if cp > 1:
        _own = tape.empty((rows,), "int64", "own_queries")
        whole[0] = tape.empty((rows,), "int64", names[0])
        whole[1] = tape.empty((rows,), "int64", names[1])
        return [_own, *whole, *(tape.empty((rows,), "int32", name) for name in names)]
    return [*whole, *(tape.empty((rows,), "int32", name) for name in names)]


def of_all_ranks(tape: Tape, cp: int, x: Tensor) -> Tensor:
    """`glm_dsa_cp_all_gather` of a rank's tokens x [b, s, ...]: those of all ranks, [b, s x cp, ...].

    torch 2.13 `distributed/nn/functional.py`, _AllGather: a tensor for each rank's part, which NCCL gathers side by
    side first (`ProcessGroupNCCL.cpp`, newLikeFlat), and all are joined; backward scatters sums alike.
    """
    if cp == 1:
        return x
    shape, dtype, size = x.shape, x.dtype, x.nbytes
    whole = (shape[0], shape[1] * cp, *shape[2:])
    strided = len(shape) == 3  # its gradient is a part of that of two tensors

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        own = tape.empty(shape, dtype, "grad_own_tokens")
        parts = [new(tape, shape, dtype, "grad_of_rank", size, Kernel.COPY) for _ in range(cp * strided)]
        _flat = new(tape, whole, dtype, "grad_of_ranks", cp * size, Kernel.COPY)
        tape.collective("reduce_scatter", "cp", cp * size, dtype)
        parts.clear()
        return [own]

    node = tape.node((x,), (), backward)
    _parts = [tape.empty(shape, dtype, "tokens_of_rank") for _ in range(cp)]
    flat = new(tape, whole, dtype, "tokens_of_ranks")
    tape.collective("all_gather", "cp", cp * size, dtype)
    tape.compute(Kernel.COPY, flat.numel, 2 * flat.nbytes)
    del flat
    out = new(tape, whole, dtype, "tokens_of_all", cp * size, Kernel.COPY)
    out.node = node
    return out


def _best(tape: Tape, query: Tensor, index: Indexer, cp: int) -> Tensor:
    """`IndexerFunction` of queries [b, s, heads, d]: scores of all keys of the row, and the choice.

    Of `cp` ranks the last, whose queries see most keys.
    """
    batch, seq, heads, size = query.shape
    rows, count = batch * seq, index.top_k
    flops = rows * (2 * cp - 1) * rows * heads * size
    scores = new(tape, (rows, rows * cp), "fp32", "index_scores", query.nbytes, Kernel.GEMM, flops)
    if count > rows * cp:
        scores = new(tape, (rows, count), "fp32", "index_scores", scores.nbytes)
    best, wide = aten.topk(tape, scores, count)
    if rows * scores.shape[1] > _AT_ONCE:  # of parts of the rows, which are joined
        best, wide = (new(tape, x.shape, x.dtype, "topk", x.nbytes) for x in (best, wide))
    indices = new(tape, wide.shape, "int32", "indices", wide.nbytes)
    del wide
    none = new(tape, best.shape, "uint8", "no_key", best.nbytes)
    indices = new(tape, indices.shape, "int32", "topk_indices", indices.nbytes + none.nbytes)
    del none
    best = _scores_of(tape, scores, indices)
    return Tensor(indices.storage, (batch, seq, count), "int32")


def _scores_of(tape: Tape, scores: Tensor, indices: Tensor) -> Tensor:
    """`pytorch_extract_topk_scores`, which nothing uses."""
    shape = indices.shape
    valid = new(tape, shape, "uint8", "is_key", indices.nbytes)
    narrow = new(tape, shape, "int32", "clamp", indices.nbytes)
    _safe = new(tape, shape, "int64", "clamp", narrow.nbytes)
    del narrow
    found = aten.gather(tape, scores, _safe)
    _never = tape.empty((), "fp32", "minus_infinity")
    return new(tape, shape, "fp32", "chosen_scores", found.nbytes + valid.nbytes)
