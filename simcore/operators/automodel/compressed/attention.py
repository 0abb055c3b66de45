"""Attention of DeepSeek-V4: all heads share one key, which is the value too, of a window and of compressed tokens.

nemo-automodel 0.7.0 `components/models/deepseek_v4/layers.py`, DeepseekV4Attention.forward. Operator by operator
(eager_attention_with_sink) every pair of a query and a key is written, and a mask that is added is made longer by the
compressed keys; for TileLang's kernels a list of the keys that each query sees is made of that mask (`places`).

[Note: what a cache holds] DeepseekV4TrainCache, a variable of `forward`, names the compressor's and the indexer's
products and the indexer's compressed keys until attention returns, and with them the graph that has made them.
"""

from __future__ import annotations

from simcore.models.blocks import CompressedAttention
from simcore.operators.automodel.compressed.compressor import Compressed, compressed_keys, limits
from simcore.operators.automodel.compressed.kernels import sparse_attention
from simcore.operators.automodel.compressed.modules import Modules
from simcore.operators.automodel.compressed.pieces import copied_back, held_number, joined, part, plain_norm
from simcore.operators.automodel.compressed.places import places_seen
from simcore.operators.automodel.compressed.rotation import turned
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved, new
from simcore.operators.shared.eager_attention import added_mask, from_largest
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["compressed_attention"]

_TRUTH = "uint8"
"""Type with the size of torch's truth values."""


def compressed_attention(at: Modules, x: Tensor, block: CompressedAttention, path: str) -> list[Tensor]:
    """[output for `x` [b, s, hidden], in x's shape; probabilities, of attention operator by operator]."""
    tape, (batch, seq, _), heads, size = at.tape, x.shape, block.num_heads, block.head_dim
    low = at.norm(at.linear(x, f"{path}.wq_a"), f"{path}.q_norm")
    query = aten.to_heads(tape, at.linear(low, f"{path}.wq_b"), size, copy_grad=True).view(batch, heads, seq, size)
    keys = at.norm(at.linear(x, f"{path}.wkv"), f"{path}.kv_norm").view(batch, 1, seq, size)
    query = plain_norm(tape, query, strided=True)
    query = turned(tape, query, block.rope, batch, seq)
    keys = turned(tape, keys, block.rope, batch, seq)
    named, mask = [keys], Tensor(None, (batch, 1, seq, seq), at.run.compute)
    made = None
    if block.every:
        made = compressed_keys(at, x, low, block, f"{path}.compressor")
        count = made.keys.shape[1]
        keys = joined(tape, keys, made.keys.view(batch, 1, count, size), (batch, 1, seq + count, size))
        named += _longer_mask(tape, mask, made)
        mask = named[-1]
    if at.by_kernels:
        places = places_seen(tape, block, mask, made)
        given = [aten.contiguous(tape, query, "query"), held_number(at, f"{path}.sinks_param", query), places]
        found = [sparse_attention(tape, given, keys.view(batch, keys.shape[2], size)).view(batch, heads, seq, size)]
    else:
        found = _eager(at, query, keys, mask, f"{path}.sinks_param")
    opposite = new(tape, (batch, seq, block.rope), x.dtype, "neg")
    found[0] = turned(tape, found[0], block.rope, batch, seq)
    del opposite
    return [_output(at, found[0], block, path), *found[1:]]


def _output(at: Modules, x: Tensor, block: CompressedAttention, path: str) -> Tensor:
    """Heads `x` [b, heads, s, d] projected in groups, and all together then, [b, s, hidden]."""
    tape, (batch, _, seq, _) = at.tape, x.shape
    groups, rank, width = block.groups, block.group_rank, block.group_size
    shape = (groups, batch * seq, width)
    grouped = copied_back(tape, x, shape, "grad_heads") if groups > 1 else x.view(*shape)
    weight = aten.permuted(tape, at.param(f"{path}.wo_a.weight"), (groups, rank, width))
    by_group = aten.product(tape, grouped, weight, (groups, batch * seq, rank), width, "wo_a")
    flat = aten.contiguous(tape, by_group, "groups") if groups > 1 else by_group
    del by_group
    flat = flat.view(batch, seq, groups * rank)
    return at.linear(flat, f"{path}.wo_b")


def _longer_mask(tape: Tape, mask: Tensor, made: Compressed) -> list[Tensor]:
    """Names of the module when it has joined the mask [b, 1, s, s] and that of compressed keys; last the joined one."""
    (batch, _, seq, _), count, dtype = mask.shape, made.keys.shape[1], mask.dtype
    if made.chosen is not None:
        held = [_of_chosen(tape, made.chosen, count, dtype)]
    else:
        held = [limits(tape, batch, seq), new(tape, (count,), "int64", "positions")]
        held.append(new(tape, (batch, seq, count), _TRUTH, "is_seen"))
        held.append(_of_truths(tape, held[-1], dtype))
    return [*held, new(tape, (batch, 1, seq, seq + count), dtype, "mask", mask.nbytes + held[-1].nbytes)]


def _of_truths(tape: Tape, inside: Tensor, dtype: str) -> Tensor:
    """Numbers to add, of truth values."""
    _both = [tape.empty((), dtype, name) for name in ("zero", "minus_infinity")]
    return new(tape, inside.shape, dtype, "compressed_mask", inside.nbytes)


def _of_chosen(tape: Tape, chosen: Tensor, count: int, dtype: str) -> Tensor:
    """Mask [b, s, keys] of the chosen keys (`_build_indexer_topk_compressed_mask`)."""
    shape, moved = (*chosen.shape[:2], count), chosen.nbytes
    both = [new(tape, chosen.shape, _TRUTH, "is_key", moved) for _ in range(2)]
    _valid = new(tape, chosen.shape, _TRUTH, "is_key", 2 * both[0].nbytes)
    both.clear()
    _safe = new(tape, chosen.shape, "int64", "clamp", moved)
    counts = new(tape, shape, "int32", "counts")
    once = new(tape, chosen.shape, "int32", "is_key", _valid.nbytes)
    tape.compute(Kernel.PERMUTE, 0, 2 * once.nbytes + moved)
    del once
    _inside = new(tape, shape, _TRUTH, "is_chosen", counts.nbytes)
    return _of_truths(tape, _inside, dtype)


# ---- operator by operator -----------------------------------------------------------------------------------------
def _eager(at: Modules, query: Tensor, kv: Tensor, mask: Tensor, sinks: str) -> list[Tensor]:
    """[output [b, heads, s, d] in the memory order of tokens; probabilities [b, heads, s, keys]]."""
    tape, (batch, heads, seq, size), width = at.tape, query.shape, kv.shape[2]
    keys, values = _of_all_heads(tape, kv, heads), _of_all_heads(tape, kv, heads)
    weights = aten.product(tape, query, _stacked(tape, keys), (batch, heads, seq, width), size, "scores")
    weights = aten.mul_scalar(tape, weights)
    weights = added_mask(tape, weights, mask)
    largest = _with_sinks(tape, weights, _own_sinks := held_number(at, sinks, query))
    largest = from_largest(tape, largest)
    wide = aten.softmax(tape, aten.cast(tape, largest, "fp32"))
    probabilities = aten.cast(tape, part(tape, wide, (batch, heads, seq, width)), query.dtype)
    del wide
    out = aten.product(tape, probabilities, _stacked(tape, values), (batch, heads, seq, size), width, "attention")
    return [aten.contiguous(tape, out, "attention"), probabilities]


def _of_all_heads(tape: Tape, x: Tensor, heads: int) -> Tensor:
    """The single head [b, 1, keys, d] for every head, a view; its gradient is the sum over heads."""
    shape, dtype, moved = x.shape, x.dtype, heads * x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_keys", moved)])
    return Tensor(x.storage, (shape[0], heads, *shape[2:]), dtype, node)


def _stacked(tape: Tape, x: Tensor) -> Tensor:
    """Heads of several sequences, written one behind the other for a product (`_matmul_impl`: reshape)."""
    return x if x.shape[0] == 1 else aten.contiguous(tape, x, "heads")


def _with_sinks(tape: Tape, x: Tensor, sinks: Tensor) -> Tensor:
    """One column more, the head's sink in every row, cast for each."""
    last, shape, dtype = (*x.shape[:-1], 1), sinks.shape, x.dtype

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [new(tape, last, "fp32", "grad_sinks")]

    node = tape.node((sinks,), (), backward, reduce_to=(shape,))
    wide = new(tape, last, dtype, "sinks", sinks.nbytes)
    wide.node = node
    return joined(tape, x, wide, (*x.shape[:-1], x.shape[-1] + 1))
