"""torch 2.13's compiled flex_attention, eager around it, with the sinks that scale its output (GPT-OSS).

[Note: flex attention] `_inductor/kernel/flex/flex_attention.py`: it keeps query, key and value where they lie, the
output and its logsumexp, and hands out a scaled copy of that. Masks are kept by size, see `block_masks`. A region that
Inductor compiled puts out all that its backward reads, inputs too (`_higher_order_ops/wrap.py`,
inductor_compiled_code): a checkpoint that keeps its outputs keeps query, key and value.
"""

from __future__ import annotations

from typing import Final

from simcore.operators.shared.aten.kernels import Grads, Saved, new
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["block_masks", "flex_attention", "less_sinks"]

_BLOCK: Final = 128
"""Rows and columns of a mask's block (torch 2.13 `nn/attention/flex_attention.py`, _DEFAULT_SPARSE_BLOCK_SIZE)."""


def flex_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """(output [b, s, heads, d], scaled logsumexp in fp32 [b, s, heads]) of `q`, `k` and `v` [b, s, heads, d].

    `pairs`: twice those of a query and a key that are computed. [Note: flex attention].
    """
    shapes, dtype, (batch, seq, heads, dim) = [t.shape for t in (q, k, v)], q.dtype, q.shape
    rows, flops, moved = (batch, seq, heads), pairs * heads * 2 * dim, q.nbytes + k.nbytes + v.nbytes

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        _delta = new(tape, rows, "fp32", "attention_delta", 2 * q_bytes)
        made: Grads = [tape.empty(shape, dtype, "grad_attention") for shape in shapes]
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved,
                     shape_of_heads(dim, dim, batch * seq * heads, backward=True))
        return made

    def run() -> tuple[Tensor, ...]:
        out = tape.empty(q.shape, dtype, "attention")
        statistics = tape.empty(rows, "fp32", "logsumexp")
        tape.compute(Kernel.ATTENTION, flops, moved + out.nbytes, shape_of_heads(dim, dim, batch * seq * heads))
        return out, new(tape, rows, "fp32", "logsumexp_scaled", statistics.nbytes), statistics, q, k, v

    q_bytes = q.nbytes
    node = tape.node((q, k, v), (), backward)
    out, scaled, statistics, *inputs = tape.outputs("flex_attention", run)
    tape.save(node, *(part.detach() for part in inputs), out, statistics)
    out.node, scaled.node, scaled.output = node, node, 1
    return out, scaled


def less_sinks(tape: Tape, x: Tensor, sinks: Param) -> Tensor:
    """`x - sinks`, in x's shape; the gradient of the sinks is negated, summed and cast."""
    shape, trains = x.shape, sinks.trainable

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        return [grads[0], new(tape, shape, "fp32", "grad_sinks") if trains else None]

    node = tape.node((x, sinks), (), backward, reduce_to=(shape, sinks.shape), cast_to=("fp32", sinks.dtype))
    out = new(tape, shape, "fp32", "from_sinks", x.nbytes)
    out.node = node
    return out


def block_masks(seq: int, rows: int) -> int:
    """Bytes of one mask of `rows` sequences, or sequences and heads, of `seq` tokens (a BlockMask)."""
    blocks = -(-seq // _BLOCK)
    return 4 * 4 * rows * blocks * (1 + blocks)
