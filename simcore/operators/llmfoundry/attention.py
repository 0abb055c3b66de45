"""Attention of llm-foundry 0.3.0 (`models/layers/attention.py`): its Triton kernel, or flash-attn over all rows."""

from __future__ import annotations

from simcore.models.blocks import Attention
from simcore.operators.shared import aten
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Node, Tape, Tensor

__all__ = ["flash", "triton"]

Grads = list[Tensor | None]
Saved = list[Tensor]


def triton(tape: Tape, run: LayerWorkload, block: Attention, qkv: Tensor, bias: Tensor | None) -> Tensor:
    """Output [b, s, h * d] of the Triton kernel for `qkv` [b, s, 3 * h * d] of h heads.

    `triton_flash_attn_fn`. For backward it saves views of `qkv`, and ALiBi's `bias` (None without).
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
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved,
                     shape_of_heads(dim, dim, batch * seq * heads, backward=True))
        tape.compute(Kernel.COPY, wide.numel, wide.nbytes + moved // 3)
        return made

    node = tape.node((q, k, v), (q, k, v, *((bias,) if bias is not None else ())), backward)
    log_sum_exp = tape.empty(statistics, "fp32", "log_sum_exp")
    _scratch = tape.empty(statistics, "fp32", "scratch")
    out = aten.new(tape, shape, dtype, "attention", moved, Kernel.ATTENTION, flops,
                   shape_of_heads(dim, dim, batch * seq * heads))
    tape.save(node, out, log_sum_exp)
    out.node = node
    return out.view(batch, seq, heads * dim)


def flash(tape: Tape, run: LayerWorkload, block: Attention, qkv: Tensor) -> Tensor:
    """Output [b, s, h * d] of flash-attn for `qkv` [b, s, 3 * h * d] of h heads (`flash_attn_fn`).

    There is no padding, but rows are gathered all the same and scattered back: flash-attn 2.4.2 `bert_padding.py`,
    unpad_input (IndexFirstAxis) and pad_input (IndexPutFirstAxis). That each of the three counts rows on the device,
    and the host waits for the numbers, is left out.
    """
    batch, seq, width = run.batch, run.seq, qkv.shape[2] // 3
    mask = aten.new(tape, (batch, seq), "uint8", "padding_mask")
    q, k, v = (_unpadded(tape, x, mask) for x in _thirds(tape, qkv, block.num_heads))
    out = _over_rows(tape, run, block.num_heads, (q, k, v))
    return _padded(tape, out).view(batch, seq, width)


def _over_rows(tape: Tape, run: LayerWorkload, heads: int, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """flash-attn 2.4.2 `csrc/flash_attn/flash_api.cpp`, mha_varlen_fwd and mha_varlen_bwd.

    dq is summed in fp32, in 128 rows more for each sequence.
    """
    shape, dtype, moved = parts[0].shape, parts[0].dtype, sum(part.nbytes for part in parts)
    dim, rows = shape[1] // heads, run.tokens + 128 * run.batch
    flops, statistics = 2 * run.pairs * shape[1], (run.batch, heads, -(-run.seq // 128) * 128)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made: Grads = [tape.empty(shape, dtype, f"grad_{name}") for name in "qkv"]
        _held = (tape.empty(statistics, "fp32", "attention_sums"),
                 tape.empty((rows, heads, -(-dim // 32) * 32), "fp32", "attention_dq"))
        tape.compute(Kernel.ATTENTION, flops * 5 // 2, 3 * moved)
        return made

    node = tape.node(parts, parts, backward)
    out = aten.new(tape, shape, dtype, "attention", moved, Kernel.ATTENTION, flops)
    log_sum_exp = tape.empty((run.batch, heads, run.seq), "fp32", "log_sum_exp")
    tape.save(node, out, log_sum_exp)
    out.node = node
    return out


def _thirds(tape: Tape, qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of one tensor, by heads; their gradients are concatenated (`split_with_sizes_backward`)."""
    whole, dtype, num_bytes = qkv.shape, qkv.dtype, qkv.nbytes
    node: Node | None = tape.node((qkv,), (), lambda tape, grads, saved: [
        aten.new(tape, whole, dtype, "grad_qkv", num_bytes, Kernel.COPY)])
    shape = (*whole[:2], heads, whole[2] // 3 // heads)
    first, second, third = (Tensor(qkv.storage, shape, dtype, node, i) for i in range(3))
    return first, second, third


def _unpadded(tape: Tape, x: Tensor, mask: Tensor) -> Tensor:
    """Rows of tokens that are no padding, which are all; where sequences begin is left out."""
    shape, dtype, tokens = x.shape, x.dtype, mask.numel
    rows = aten.new(tape, (tokens,), "int64", "indices", mask.nbytes)

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        grad = aten.new(tape, shape, dtype, "grad_unpadded")
        tape.compute(Kernel.PERMUTE, 0, 2 * grad.nbytes)
        return [grad]

    node = tape.node((x,), (rows,), backward)
    out = aten.new(tape, (tokens, x.numel // tokens), dtype, "unpadded", x.nbytes, Kernel.PERMUTE, 0)
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
