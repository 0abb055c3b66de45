"""A linear whose frozen weight lies in 4 bits, and PEFT's adapter of it.

[Note: a product with 4 bits]
bitsandbytes 0.50.2 `autograd/_functions.py`, MatMul4Bit, and `backends/cuda/ops.py`, _dequant_linear_fallback: forward
makes the weight in the type of the product and drops it behind the product; backward makes it once more. The node keeps
neither the input nor what was made. Maxima that are quantised themselves are made in fp32 first: forward holds them
twice (with and without their offset) until the product is done, backward once while the weight is made. Kernels that
read 4 bits directly take over where rows are few (up to 1536, by shape and GPU): not modelled, their bytes are less.
`nn/modules.py`, Linear4bit: input and bias are cast to the type of the product, the output back to the input's.
PEFT 0.21.2 `tuners/lora/bnb.py`, Linear4bit: copies the output before the adapter's is added; without autocast the
adapter's input is cast to its type, its output back.
"""

from __future__ import annotations

from simcore.operators import aten
from simcore.operators.aten import Grads, Saved
from simcore.operators.hf_autocast import is_autocast, product
from simcore.recording import Run
from simcore.tape import Kernel, Param, Tape, Tensor

__all__ = ["packed_linear"]


def packed_linear(tape: Tape, run: Run, prefix: str, label: str, x: Tensor) -> Tensor:
    """The module whose parameters' names begin with `prefix`, with its adapter where there is one."""
    base = _module(tape, x, run.params[f"{prefix}weight"], run.params.get(f"{prefix}bias"), label)
    lora_a = run.params.get(f"{prefix}lora_a.weight")
    if lora_a is None:
        return base
    base = _clone(tape, base, label)
    lora_b = run.params[f"{prefix}lora_b.weight"]
    x = x if is_autocast(run) else aten.cast(tape, x, lora_a.dtype)
    down_up = product(tape, run, product(tape, run, x, lora_a, f"{label}.lora_a"), lora_b, f"{label}.lora_b")
    scaled = aten.mul_scalar(tape, down_up)
    del down_up
    scaled = scaled if is_autocast(run) else aten.cast(tape, scaled, base.dtype)
    return aten.add(tape, base, scaled, f"{label}.sum")


def _module(tape: Tape, x: Tensor, weight: Param, bias: Param | None, label: str) -> Tensor:
    dtype = x.dtype
    x = aten.cast(tape, x, weight.dtype)
    out = _product(tape, x, weight, label)
    if bias is not None:
        tape.compute(Kernel.ELEMENTWISE, out.numel, 2 * out.nbytes)
    return aten.cast(tape, out, dtype)


def _product(tape: Tape, x: Tensor, weight: Param, label: str) -> Tensor:
    shape, dtype, x_bytes, flops = x.shape, x.dtype, x.nbytes, 2 * x.numel * weight.shape[0]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        whole = _values(tape, weight, _maxima(tape, weight))
        return [aten.new(tape, shape, dtype, f"grad_{label}", grad.nbytes + whole.nbytes, Kernel.GEMM, flops)]

    node = tape.node((x,), (), backward)  # the weight is an attribute of ctx, which a checkpoint does not count
    without_offset = _maxima(tape, weight)
    maxima = None if without_offset is None else aten.new(tape, without_offset.shape, "fp32", f"{label}.absmax",
                                                          without_offset.nbytes)
    whole = _values(tape, weight, maxima)
    out = aten.new(tape, (*shape[:-1], weight.shape[0]), dtype, label, x_bytes + whole.nbytes, Kernel.GEMM, flops)
    out.node = node
    return out


def _maxima(tape: Tape, weight: Param) -> Tensor | None:
    """Of blocks, in fp32, if they are quantised themselves."""
    assert weight.packed is not None
    if not weight.packed.double_quant:
        return None
    blocks = weight.packed.blocks(weight.numel)
    return aten.new(tape, (blocks,), "fp32", "dequantised.absmax", blocks)


def _values(tape: Tape, weight: Param, _maxima: Tensor | None) -> Tensor:
    """The weight as a product takes it; the maxima are the caller's until it is there."""
    assert weight.packed is not None
    moved = weight.packed.data_bytes(weight.numel) + weight.packed.constant_bytes(weight.numel)
    return aten.new(tape, weight.shape, weight.dtype, "dequantised", moved)


def _clone(tape: Tape, x: Tensor, label: str) -> Tensor:
    node = tape.node((x,), (), lambda tape, grads, saved: [grads[0]])
    out = aten.new(tape, x.shape, x.dtype, f"{label}.clone", x.nbytes, Kernel.COPY)
    out.node = node
    return out
