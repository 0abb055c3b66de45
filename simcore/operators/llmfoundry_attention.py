"""Attention of llm-foundry 0.3.0 (`models/layers/attention.py`): its Triton kernel, or flash-attn over all rows."""

from __future__ import annotations

from simcore.models.blocks import Attention
from simcore.operators import aten
from simcore.product import shape_of_heads
from simcore.recording import Run
from simcore.tape import Kernel, Node, Tape, Tensor

__all__ = ["flash", "triton"]

Grads = list[Tensor | None]
Saved = list[Tensor]


def triton(tape: Tape, run: Run, block: Attention, qkv: Tensor, bias: Tensor | None) -> Tensor:
    """`triton_flash_attn_fn` of qkv [b, s, 3 * h * d]: views of it are read and kept, and the bias.

    `models/layers/flash_attn_triton.py`, _flash_attn_forward and _flash_attn_backward: rows of statistics are rounded
    up to 128; dq is summed in fp32, zeroed before, and then copied.
    """
    q, k, v = _thirds(tape, qkv, block.num_heads)
    batch, seq, heads, dim = q.shape
    statistics, dtype, moved = (batch, heads, -(-seq // 128) * 128), q.dtype, q.nbytes + k.nbytes + v.nbytes
    flops, shape = 2 * run.pairs * heads * dim, q.shape

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, f"grad_{name}") for name in "qkv"]
        wide = tape.empty(shape, "fp32", "dq_accum")
        _delta = aten.new(tape, statistics, "fp32", "delta", 2 * moved // 3)
        tape.compute(Kernel.ELEMENTWISE, wide.numel, wide.nbytes)
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved, shape_of_heads(dim, dim, backward=True))
        tape.compute(Kernel.COPY, wide.numel, wide.nbytes + moved // 3)
        return made

    node = tape.node((q, k, v), (q, k, v, *((bias,) if bias is not None else ())), backward)
    log_sum_exp = tape.empty(statistics, "fp32", "log_sum_exp")
    _scratch = tape.empty(statistics, "fp32", "scratch")
    out = aten.new(tape, shape, dtype, "attention", moved, Kernel.ATTENTION, flops, shape_of_heads(dim, dim))
    tape.save(node, out, log_sum_exp)
    out.node = node
    return out.view(batch, seq, heads * dim)


def flash(tape: Tape, run: Run, block: Attention, qkv: Tensor) -> Tensor:
    """`flash_attn_fn` of qkv [b, s, 3 * h * d] without padding: rows are gathered all the same, and scattered back.

    flash-attn 2.4.2 `bert_padding.py`, unpad_input (IndexFirstAxis) and pad_input (IndexPutFirstAxis). That each of the
    three counts rows on the device, and the host waits for the numbers, is left out.
    """
    batch, seq, width = run.batch, run.seq, qkv.shape[2] // 3
    dim = width // block.num_heads
    q, k, v = (_unpadded(tape, x, run).view(1, run.tokens, block.num_heads, dim)
               for x in _thirds(tape, qkv, block.num_heads))
    out = aten.flash_attention(tape, q, k, v, run.pairs, batch)
    return _padded(tape, out.view(run.tokens, width)).view(batch, seq, width)


def _thirds(tape: Tape, qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of one tensor, by heads; their gradients are concatenated (`split_with_sizes_backward`)."""
    whole, dtype, num_bytes = qkv.shape, qkv.dtype, qkv.nbytes
    node: Node | None = tape.node((qkv,), (), lambda tape, grads, saved: [
        aten.new(tape, whole, dtype, "grad_qkv", num_bytes, Kernel.COPY)])
    shape = (*whole[:2], heads, whole[2] // 3 // heads)
    first, second, third = (Tensor(qkv.storage, shape, dtype, node, i) for i in range(3))
    return first, second, third


def _unpadded(tape: Tape, x: Tensor, run: Run) -> Tensor:
    """Rows of tokens that are no padding: all."""
    shape, dtype = x.shape, x.dtype
    mask = aten.new(tape, (run.batch, run.seq), "uint8", "padding_mask")
    rows = aten.new(tape, (run.tokens,), "int64", "indices", mask.nbytes)
    del mask

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        grad = aten.new(tape, shape, dtype, "grad_unpadded")
        tape.compute(Kernel.PERMUTE, 0, 2 * grad.nbytes)
        return [grad]

    node = tape.node((x,), (rows,), backward)
    out = aten.new(tape, (run.tokens, x.numel // run.tokens), dtype, "unpadded", x.nbytes, Kernel.PERMUTE, 0)
    out.node = node
    return out


def _padded(tape: Tape, x: Tensor) -> Tensor:
    """Rows put into zeros."""
    shape, dtype, num_bytes = x.shape, x.dtype, x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_padded", num_bytes, Kernel.PERMUTE, 0)])
    out = aten.new(tape, shape, dtype, "padded")
    tape.compute(Kernel.PERMUTE, 0, 2 * num_bytes)
    out.node = node
    return out
