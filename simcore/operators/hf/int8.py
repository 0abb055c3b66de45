"""A linear whose frozen weight is stored in int8, as bitsandbytes' LLM.int8() multiplies it.

[Note: a product of LLM.int8()]
bitsandbytes 0.50.2 `autograd/_functions.py`, MatMul8bitLt, and `backends/cuda/ops.py`: the input is cast to fp16 and
quantised by rows; where a threshold is set, a copy of its absolute values and a mask are made too, and the host asks
whether there is any outlier. The product is int32, then fp16, then of the input's type, all three alive at once.
Columns with outliers would be multiplied apart, in the input's type: none are counted. Backward makes the weight in the
input's type. The node keeps the input, which it does not need, as an attribute: so no checkpoint takes it away, and it
lives as long as the graph. Kernels of int8 are timed as those of the input's type.
"""

from __future__ import annotations

from simcore.operators.hf.options import HfOptions
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["int8_product"]


def int8_product(tape: Tape, run: LayerWorkload, x: Tensor, weight: Param, bias: Param | None, label: str) -> Tensor:
    """`Linear8bitLt.forward`: [..., n] in x's type, for `x` [..., k] and an int8 `weight` [n, k].

    A bias is added in place. The node keeps `x` as long as the graph lives. `label`: name of the output's storage.
    """
    shape, dtype, rows = x.shape, x.dtype, x.numel // x.shape[-1]
    width, flops = weight.shape[0], 2 * x.numel * weight.shape[0]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        whole = _values(tape, weight, dtype)
        return [aten.new(tape, shape, dtype, f"grad_{label}", grad.nbytes + whole.nbytes, Kernel.GEMM, flops)]

    node = tape.node((x,), (), backward)
    tape.attach(node, x)
    narrow, scales = _quantised(tape, run, x, rows)
    out = _multiplied(tape, narrow, weight, (*shape[:-1], width), dtype, label)
    del narrow, scales
    if bias is not None:
        tape.compute(Kernel.ELEMENTWISE, out.numel, 2 * out.nbytes)
    out.node = node
    return out


def _quantised(tape: Tape, run: LayerWorkload, x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Rows in int8 and their maxima; nothing else of `int8_vectorwise_quant` is left."""
    half = aten.cast(tape, x.detach(), "fp16")
    scales = aten.new(tape, (rows,), "fp32", "int8.maxima", 0)
    narrow = aten.new(tape, x.shape, "int8", "int8.rows", half.nbytes)
    if HfOptions.of(run.options).has_outlier_threshold:
        absolute = aten.new(tape, x.shape, "fp16", "int8.absolute", half.nbytes)
        mask = aten.new(tape, x.shape, "uint8", "int8.outliers", half.nbytes)
        del absolute
        tape.stop()
        del mask
    return narrow, scales


def _multiplied(tape: Tape, narrow: Tensor, weight: Param, shape: tuple[int, ...], dtype: str, label: str) -> Tensor:
    flops = 2 * narrow.numel * weight.shape[0]
    whole = aten.new(tape, shape, "int32", "int8.product", narrow.nbytes + weight.numel, Kernel.GEMM, flops)
    half = aten.new(tape, shape, "fp16", label if dtype == "fp16" else "int8.scaled", whole.nbytes)
    return half if dtype == "fp16" else aten.new(tape, shape, dtype, label, half.nbytes)


def _values(tape: Tape, weight: Param, dtype: str) -> Tensor:
    whole = aten.new(tape, weight.shape, dtype, "dequantised", weight.numel)
    factors = aten.new(tape, (weight.shape[0], 1), "fp32", "dequantised.factors", 0)
    tape.compute(Kernel.ELEMENTWISE, whole.numel, 2 * whole.nbytes + factors.nbytes)
    return whole
