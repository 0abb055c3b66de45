"""TransformerEngine's fused attention over 8-bit query, key and value with one scale (fp8_dot_product_attention).

TransformerEngine 2.8 and 2.18 `pytorch/attention/dot_product_attention/backends.py`, FusedAttnFunc; `utils.py`,
combine_and_quantize, combine_and_dequantize; `context_parallel.py`, AttnFuncWithCPAndQKVOA2A.

[Note: attention in 8 bits]
Query, key and value are put one behind the other and quantised as one tensor, of which backward keeps the rows alone.
Delayed scaling: the kernel writes its output in 8 bits, which backward keeps, and what goes on is a copy in 16 bits;
the gradients of query, key and value come in 8 bits and are widened too. Scaling by the maximum of now (tensorwise, and
beside linears in nvfp4): the kernel writes 16 bits, which are kept, because NVTE_DPA_FP8CS_O_in_F16 is on. The gradient
of the output is quantised before backward (NVTE_FP8_DPA_BWD is on).
"""

from __future__ import annotations

from dataclasses import replace

from simcore.operators.megatron.exchange_heads import Work, attend, differentiate, send_gradient
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.fp8 import quantized
from simcore.operators.megatron.sinks import grad_of_sinks, own_sinks
from simcore.operators.shared.quantizer import Quantized
from simcore.recording.kernel_shape import shape_of_heads
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["attends_by_tensor", "core_8_bits"]


def attends_by_tensor(c: Context) -> bool:
    """True if attention's operands are in 8 bits with one scale each; those of mxfp8 have a scale for 32 values."""
    return c.attends_in_fp8 and c.options.fp8_recipe in ("delayed", "tensorwise", "nvfp4")


def core_8_bits(c: Context, num_heads: int, parts: tuple[Tensor, Tensor, Tensor], columns: int, *,
                plain: bool, pairs: int = 0, sinks: Param | None = None) -> Tensor:
    """Output [tokens, `columns`] of causal attention, in 16 bits, for `parts`: query, key and value, each [tokens, n].

    It keeps [Note: attention in 8 bits]'s operands, its output, the softmax's statistics (fp32, one a head), and the
    numbers of `sinks`. `num_heads`: heads of all tp ranks; `plain`: the parts are parts of one tensor that need not be
    put together; `pairs`: of positions that are seen, 0 for all.
    """
    own = _own(c)
    rows, heads = parts[0].shape[0], num_heads // c.run.tp
    widths = [part.shape[1] for part in parts]
    sizes = widths[0] // heads, columns // heads, rows * heads
    flops = (pairs or c.run.pairs) * (widths[0] + columns)

    def back(tape: Tape, _grads: Grads, saved: Saved) -> list[Tensor | None]:
        given = quantized(own, rows, columns, "grad_attention_out", backward=False)
        send_gradient(c, rows * columns)
        work = tape.empty((rows, widths[0] + heads), "fp32", "attention_workspace")
        made = c.new(rows, sum(widths), "grad_qkv_fp8" if _is_delayed(c) else "grad_qkv_whole", _written(c))
        query, key, value = (made.nbytes // sum(widths) * width for width in widths)
        differentiate(c, Work(Kernel.FP8_ATTENTION, flops * 5 // 2, shape_of_heads(*sizes, backward=True),
                              (query, key, value), others=2 * sum(t.nbytes for t in saved)))
        del work, given
        whole = _widened(c, made, "grad_qkv_whole")
        del made
        grads: list[Tensor | None] = [Tensor(whole.storage, (rows, width), c.dtype) for width in widths]
        return [*grads, *(() if sinks is None else (grad_of_sinks(c, sinks),))]

    made = _together(c, own, rows, sum(widths), plain=plain)
    numbers = () if sinks is None else (own_sinks(c, sinks),)
    stats = c.new(rows, heads, "softmax_stats", "fp32")
    first = c.new(rows, columns, "attention_out_fp8" if _is_delayed(c) else "attention_out", _written(c))
    query, key, value = (rows * width for width in widths)
    attend(c, Work(Kernel.FP8_ATTENTION, flops, shape_of_heads(*sizes), (query, key, value), first.nbytes,
                   stats.nbytes))
    out = _widened(c, first, "attention_out")
    if c.swaps_heads and not _is_delayed(c):
        out = c.new(rows, columns, "attention_handed_on")
    c.node(out, (*parts, *(() if sinks is None else (sinks,))), (*made.kept, first, stats, *numbers), back)
    return out


def _is_delayed(c: Context) -> bool:
    return c.options.fp8_recipe == "delayed"


def _own(c: Context) -> Context:
    """Context with attention's recipe, which is never that of linears in nvfp4."""
    return replace(c, recipe="delayed" if _is_delayed(c) else "tensorwise")


def _written(c: Context) -> str:
    """Format in which the kernel writes."""
    return "uint8" if _is_delayed(c) else c.dtype


def _together(c: Context, own: Context, rows: int, columns: int, *, plain: bool) -> Quantized:
    """Query, key and value in 8 bits, [rows, columns]: a copy puts them one behind the other unless they lie so."""
    together = None if plain else c.new(rows, columns, "query_key_value")
    if together is not None:
        c.elementwise(together, 2, Kernel.COPY)
    return quantized(own, rows, columns, "query_key_value", backward=False)


def _widened(c: Context, x: Tensor, name: str) -> Tensor:
    """`x`, which the kernel wrote, in 16 bits: itself, or a copy."""
    if x.dtype == c.dtype:
        return x
    out = c.tape.empty(x.shape, c.dtype, name)
    c.tape.compute(Kernel.ELEMENTWISE, out.numel, out.nbytes + x.nbytes, 1)
    return out
