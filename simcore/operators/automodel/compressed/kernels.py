"""TileLang's kernels of DeepSeek-V4: what the wrappers around them allocate, in NeMo Automodel.

nemo-automodel 0.7.0 `components/models/deepseek_v4/optimized_kernels.py` and `kernels/{sparse_attention,
tilelang_sparse_mla_fwd,tilelang_sparse_mla_bwd,tilelang_indexer_fwd}.py`, whose own Python was run; workspaces inside
the kernels are not known.

[Note: heads at once] A kernel takes 16 heads of 256 columns or more, 64 of fewer; heads above are run in chunks, each
copied. Fewer than 16 heads are filled up with zeros.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.shared.aten import Grads, Saved, new
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["scores_by_kernel", "sparse_attention"]

_TRUTH: Final = "uint8"
_LEAST: Final = 16
"""Heads that a kernel takes at least."""
_BLOCKS: Final = (64, 32)
"""Chosen keys are filled up to multiples of these, forward and backward."""
_KEYS: Final = 256
"""The indexer's keys are filled up to a multiple of this, queries to one of 128 by its heads."""


# ---- the indexer --------------------------------------------------------------------------------------------------
def scores_by_kernel(tape: Tape, query: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """`batched_indexer_fwd`: [b, s, keys] of the query [b, heads, s, d], without a graph; a sequence at a time."""
    batch, heads, seq, size = query.shape
    count = keys.shape[1]
    bounds = _bounds(tape, seq)
    several = batch > 1
    _turned = [new(tape, x.shape, x.dtype, "sequence_first", x.nbytes, Kernel.COPY) for x in (query, keys) if several]
    scaled = new(tape, weights.shape, "fp32", "scale", weights.nbytes)
    if several:
        scaled = new(tape, weights.shape, "fp32", "sequence_first", weights.nbytes, Kernel.COPY)
    out = tape.empty((batch, seq, count), "fp32", "index_scores")
    for _ in range(batch):
        _row_of_scores(tape, (seq, heads, size), count, copies=several)
    del bounds, scaled
    return out


def _bounds(tape: Tape, seq: int) -> list[Tensor]:
    """First and last key of each query."""
    positions = tape.empty((seq,), "int32", "positions")
    first = tape.empty((seq,), "int32", "first_of_keys")
    moved = new(tape, (seq,), "int32", "last_of_keys", positions.nbytes)
    return [first, new(tape, (seq,), "int32", "last_of_keys", moved.nbytes)]


def _row_of_scores(tape: Tape, shape: tuple[int, int, int], count: int, *, copies: bool) -> None:
    """`indexer_fwd_interface` of one sequence: copies, filled up to whole tiles, scores of all queries and keys."""
    seq, heads, size = shape
    tile = max(128 // heads, 1)
    rows, columns = -(-seq // tile) * tile, -(-count // _KEYS) * _KEYS
    given: list[tuple[str, tuple[int, ...]]] = [("bf16", shape), ("bf16", (count, size)), ("fp32", (seq, heads))]
    own = [tape.empty(one, dtype, "of_sequence") if copies else None for dtype, one in given]
    held: list[Tensor] = []
    if rows != seq:
        more = rows - seq
        held += [new(tape, (more, heads, size), "bf16", "zeros"), new(tape, (more, heads), "fp32", "zeros"),
                 new(tape, (more,), "int32", "zeros")]
        own[0] = new(tape, (rows, heads, size), "bf16", "filled_up")
        own[2] = new(tape, (rows, heads), "fp32", "filled_up")
        held += [new(tape, (rows,), "int32", "filled_up") for _ in range(2)]
    if columns != count:
        held.append(new(tape, (columns - count, size), "bf16", "zeros"))
        own[1] = new(tape, (columns, size), "bf16", "filled_up")
    logits = tape.empty((rows, columns), "fp32", "index_logits")
    tape.compute(Kernel.GEMM, 2 * rows * columns * heads * size, logits.nbytes)
    tape.compute(Kernel.ELEMENTWISE, logits.numel, 2 * logits.nbytes)
    own.clear()
    held.clear()
    tape.compute(Kernel.COPY, 0, 2 * logits.nbytes)


# ---- attention ----------------------------------------------------------------------------------------------------
def sparse_attention(tape: Tape, given: list[Tensor], kv: Tensor) -> Tensor:
    """`dsv4_sparse_attention`: [b, s, heads, d]. `kv`: keys that are values too, [b, keys, d].

    `given`: q [b, heads, s, d], sinks, a number a head in fp32, and places int64 [b, s, slots], keys that each query
    sees, -1 for none. The list, the only one to name the first two, gets empty.
    """
    q, sinks, places = given
    given.clear()
    batch, heads, seq, size = q.shape
    q = q.view(batch, seq, heads, size)
    at_once = 16 if size >= 256 else 64
    narrow = new(tape, places.shape, "int32", "places", places.nbytes)
    if heads < _LEAST:
        q = _filled(tape, q, (batch, seq, _LEAST, size))
        sinks = _filled(tape, sinks, (_LEAST,))
    if q.shape[2] > at_once:
        out = _by_chunks(tape, q, kv, sinks, narrow, at_once)
    else:
        out = _whole(tape, q, kv, sinks, narrow, copies=heads >= _LEAST)
    return _first_heads(tape, out, heads)


def _filled(tape: Tape, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`x` with zeros behind; its gradient is a view."""
    own = x.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        return [grad and grad.view(*own)]

    rest = (*shape[:-2], shape[-2] - own[-2], shape[-1]) if len(shape) > 1 else (shape[0] - own[0],)
    zeros = new(tape, rest, x.dtype, "zeros")
    node = tape.node((x,), (), backward)
    out = new(tape, shape, x.dtype, "filled_up", x.nbytes + zeros.nbytes)
    out.node = node
    return out


def _first_heads(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """View of the first heads; the gradient of fewer than all is written into zeros."""
    if x.shape[2] == heads:
        return x
    shape, dtype = x.shape, x.dtype
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_slice")])
    return Tensor(x.storage, (*shape[:2], heads, shape[3]), dtype, node)


def _masked_places(tape: Tape, places: Tensor, block: int) -> list[Tensor]:
    """Places filled up to a multiple of `block`, within the keys, and their mask, as a kernel reads them."""
    batch, seq, slots = places.shape
    whole = -(-slots // block) * block
    held: list[Tensor] = []
    shape = (batch, seq, whole)
    if whole != slots:
        held.append(new(tape, (batch, seq, whole - slots), "int32", "nowhere"))
        places = new(tape, shape, "int32", "filled_up", places.nbytes)
    both = [new(tape, shape, _TRUTH, "is_key", places.nbytes) for _ in range(2)]
    valid = new(tape, shape, _TRUTH, "is_key", 2 * both[0].nbytes)
    both.clear()
    held.append(new(tape, shape, "int32", "is_key", valid.nbytes))
    del valid
    held.append(new(tape, shape, "int32", "places", places.nbytes))
    return held


def _run(tape: Tape, shape: tuple[int, ...], slots: int, dtype: str) -> tuple[Tensor, Tensor]:
    """A kernel's output, in the shape of its query, and log-sums in fp32."""
    batch, seq, heads, size = shape
    out = tape.empty(shape, dtype, "attention")
    sums = tape.empty(shape[:3], "fp32", "softmax_statistics")
    tape.compute(Kernel.ATTENTION, 4 * batch * seq * heads * slots * size, 3 * out.nbytes,
                 shape_of_heads(size, size, batch * seq * heads))
    return out, sums


def _run_back(tape: Tape, shape: tuple[int, ...], keys: tuple[int, ...], slots: int, held: list[Tensor]) -> tuple[
        Tensor, Tensor, Tensor]:
    """Gradients of the query, of the keys in fp32, and of the sinks. `held`: takes what the wrapper names beside."""
    batch, seq, heads, size = shape
    delta = new(tape, shape[:3], "fp32", "attention_delta")
    held.append(delta)
    to_keys, to_sinks = new(tape, keys, "fp32", "grad_keys"), new(tape, (heads,), "fp32", "grad_sinks")
    to_q = tape.empty(shape, "bf16", "grad_attention")
    tape.compute(Kernel.ATTENTION, 10 * batch * seq * heads * slots * size, 6 * to_q.nbytes,
                 shape_of_heads(size, size, batch * seq * heads, backward=True))
    return to_q, to_keys, to_sinks


def _by_tokens(tape: Tape, shape: tuple[int, ...], dtype: str) -> Tensor:
    """The gradient of the output, which comes by heads, copied to lie by tokens."""
    return new(tape, shape, dtype, "grad_contiguous", kernel=Kernel.COPY)


def _whole(tape: Tape, q: Tensor, kv: Tensor, sinks: Tensor, places: Tensor, *, copies: bool) -> Tensor:
    """`DeepSeekV4SparseAttention`: all heads in one kernel. `copies`: its gradient comes by heads, not by tokens."""
    shape, keys, slots, dtype = q.shape, kv.shape, places.shape[2], q.dtype
    rows = Tensor(None, places.shape, "int32")

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _grad = _by_tokens(tape, shape, dtype) if copies else None
        held = _masked_places(tape, rows, _BLOCKS[1])
        to_q, wide, to_sinks = _run_back(tape, shape, keys, slots, held)
        to_keys = new(tape, keys, "bf16", "grad_keys", wide.nbytes)
        del wide
        held.clear()
        return [to_q, to_keys, to_sinks]

    node = tape.node((q, kv, sinks), (), backward)
    held = _masked_places(tape, places, _BLOCKS[0])
    out, sums = _run(tape, shape, slots, q.dtype)
    held.clear()
    tape.save(node, q, kv, sinks, places, out, sums)
    out.node = node
    return out


def _by_chunks(tape: Tape, q: Tensor, kv: Tensor, sinks: Tensor, places: Tensor, at_once: int) -> Tensor:
    """`DeepSeekV4SparseAttentionHeadChunked`: [Note: heads at once]."""
    batch, seq, heads, size = shape = q.shape
    keys, slots, dtype = kv.shape, places.shape[2], q.dtype
    rows = Tensor(None, places.shape, "int32")
    chunks = [min(at_once, heads - start) for start in range(0, heads, at_once)]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _grad = _by_tokens(tape, shape, dtype)
        to_q = tape.empty(shape, dtype, "grad_attention")
        total = new(tape, keys, "fp32", "grad_keys")
        to_sinks = tape.empty((heads,), "fp32", "grad_sinks")
        last: list[Tensor] = []
        for count in chunks:
            made = _chunk_back(tape, (batch, seq, count, size), keys, rows, dtype)
            last[:] = made
            made.clear()
            tape.compute(Kernel.ELEMENTWISE, total.numel, 3 * total.nbytes)
        return [to_q, new(tape, keys, dtype, "grad_keys", total.nbytes), to_sinks]

    node = tape.node((q, kv, sinks), (), backward)
    out = tape.empty(shape, dtype, "attention")
    sums = tape.empty(shape[:3], "fp32", "softmax_statistics")
    last: list[Tensor] = []
    for count in chunks:
        own = new(tape, (batch, seq, count, size), dtype, "heads", kernel=Kernel.COPY)
        held = _masked_places(tape, places, _BLOCKS[0])
        made = [*_run(tape, own.shape, slots, dtype)]
        held.clear()
        del own
        last[:] = made
        made.clear()
        tape.compute(Kernel.COPY, 0, 2 * last[0].nbytes)
    tape.save(node, q, kv, sinks, places, out, sums)
    out.node = node
    return out


def _chunk_back(tape: Tape, shape: tuple[int, ...], keys: tuple[int, ...], places: Tensor, dtype: str) -> list[Tensor]:
    """Gradients of some heads, whose query, output, gradient and log-sums are copied."""
    own = [new(tape, shape, dtype, "heads", kernel=Kernel.COPY) for _ in range(3)]
    own.append(new(tape, shape[:3], "fp32", "heads", kernel=Kernel.COPY))
    held = _masked_places(tape, places, _BLOCKS[1])
    made = [*_run_back(tape, shape, keys, places.shape[2], held)]
    held.clear()
    own.clear()
    return made
