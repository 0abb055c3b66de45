"""A linear whose frozen weight is stored in 4 bits or in int8, and its adapter.

[Note: a product with 4 bits]
bitsandbytes 0.50.2 `autograd/_functions.py`, MatMul4Bit, and `backends/cuda/ops.py`, _dequant_linear_fallback: forward
makes the weight in the type of the product and drops it behind the product; backward makes it once more. The node keeps
neither the input nor what was made. Maxima that are quantised themselves are made in fp32 first: forward holds them
twice (with and without their offset) until the product is done, backward once while the weight is made. Kernels that
read 4 bits directly take over where rows are few (up to 1536, by shape and GPU): not modelled, their bytes are less.
`nn/modules.py`, Linear4bit: input and bias are cast to the type of the product, the output back to the input's.
PEFT 0.21.2 `tuners/lora/bnb.py`, Linear4bit: copies the output before the adapter's is added; without autocast the
adapter's input is cast to its type, its output back. Automodel's adapter (0.7.0 `components/_peft/lora.py`,
patch_linear_module: super_fwd) adds the output in place to its own.
torchao 0.18 `nf4_tensor.py`, get_original_weight: eager, 12 bytes a value (indices of 8 bytes, halves in 16 bits) and
the maxima in 16 bits exist with the result when it is made; compiled it is one kernel. LinearNF4 is such a function
too, torchtune's adapter adds nothing but sums.

[Note: a product of LLM.int8()]
bitsandbytes 0.50.2 `autograd/_functions.py`, MatMul8bitLt, and `backends/cuda/ops.py`: the input is cast to fp16 and
quantised by rows; where a threshold is set, a copy of its absolute values and a mask are made too, and the host asks
whether there is any outlier. The product is int32, then fp16, then of the input's type, all three alive at once.
Columns with outliers would be multiplied apart, in the input's type: none are counted. Backward makes the weight in the
input's type. The node keeps the input, which it does not need, as an attribute: so no checkpoint takes it away, and it
lives as long as the graph. Kernels of int8 are timed as those of the input's type.
"""

from __future__ import annotations

from simcore.operators.automodel.adapters.lora import linear_lora
from simcore.operators.hf.autocast import is_autocast
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.peft import dora_sum, has_dora, lora_part
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Saved
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["packed_linear", "whole_experts"]


def packed_linear(tape: Tape, run: LayerWorkload, prefix: str, label: str, x: Tensor) -> Tensor:
    """Output [..., n] of a linear with a 4-bit or int8 weight for `x` [..., k], with its adapter if any.

    `prefix`: beginning of its parameters' names; `label`: name of the output's storage.
    """
    weight = run.params[f"{prefix}weight"]
    is_int8 = weight.packed is not None and weight.packed.is_int8
    base = (_int8_module if is_int8 else _module)(tape, run, x, weight, run.params.get(f"{prefix}bias"), label)
    if f"{prefix}lora_A.weight" in run.params:
        return linear_lora(tape, run, prefix, x, base, label)
    lora_a = run.params.get(f"{prefix}lora_a.weight")
    if lora_a is None:
        return base
    base = base if is_int8 or _is_torchaos(run, prefix) else _clone(tape, base, label)
    x, dtype = x if is_autocast(run) else aten.cast(tape, x, lora_a.dtype), base.dtype
    if has_dora(run, prefix):
        total = dora_sum(tape, run, prefix, label, x, base, lambda: _values(tape, weight, _beside(tape, run, weight)))
        del base
        return total if is_autocast(run) else aten.cast(tape, total, dtype)
    scaled = lora_part(tape, run, prefix, label, x)
    scaled = scaled if is_autocast(run) else aten.cast(tape, scaled, dtype)
    return aten.add(tape, base, scaled, f"{label}.sum")


def whole_experts(tape: Tape, run: LayerWorkload, weight: Param) -> Tensor:
    """Weight of all experts, made whole from its 4 bits without a gradient; it is as `weight` in shape and type.

    bitsandbytes 0.50.2 `nn/parametrize.py`, Bnb4bitParametrization.forward: its hooks keep it until the module returns,
    and a product that saves it until backward.
    """
    maxima = _beside(tape, run, weight)
    made = _values(tape, weight, maxima)
    return made.detach()


def _is_torchaos(run: LayerWorkload, prefix: str) -> bool:
    packed = run.params[f"{prefix}weight"].packed
    return packed is not None and packed.is_tensor


def _module(tape: Tape, run: LayerWorkload, x: Tensor, weight: Param, bias: Param | None, label: str) -> Tensor:
    dtype = x.dtype
    x = aten.cast(tape, x, weight.dtype)
    out = _product(tape, run, x, weight, label)
    if bias is not None:
        tape.compute(Kernel.ELEMENTWISE, out.numel, 2 * out.nbytes)
    return aten.cast(tape, out, dtype)


def _product(tape: Tape, run: LayerWorkload, x: Tensor, weight: Param, label: str) -> Tensor:
    shape, dtype, x_bytes, flops = x.shape, x.dtype, x.nbytes, 2 * x.numel * weight.shape[0]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        whole = _values(tape, weight, _beside(tape, run, weight))
        return [aten.new(tape, shape, dtype, f"grad_{label}", grad.nbytes + whole.nbytes, Kernel.GEMM, flops)]

    # bitsandbytes' weight is an attribute of ctx, which a checkpoint does not count; torchao's is saved
    node = tape.node((x,), (weight,) if weight.packed and weight.packed.is_tensor else (), backward)
    is_tensor = weight.packed is not None and weight.packed.is_tensor
    held = None if is_tensor else _beside(tape, run, weight)
    maxima = None if held is None else aten.new(tape, held.shape, "fp32", f"{label}.absmax", held.nbytes)
    whole = _values(tape, weight, _beside(tape, run, weight) if is_tensor else maxima)
    out = aten.new(tape, (*shape[:-1], weight.shape[0]), dtype, label, x_bytes + whole.nbytes, Kernel.GEMM, flops)
    out.node = node
    return out


def _beside(tape: Tape, run: LayerWorkload, weight: Param) -> Tensor | None:
    """Tensor made before the weight: maxima in fp32, if they were quantised; torchao's halves and indices; or None."""
    assert weight.packed is not None
    blocks = weight.packed.blocks(weight.numel)
    if weight.packed.is_tensor:
        size = 0 if HfOptions.of(run.options).compile else 12 * weight.numel + 2 * blocks
        return aten.new(tape, (size,), "uint8", "dequantised.halves", 2 * size, product=1) if size else None
    if not weight.packed.double_quant:
        return None
    return aten.new(tape, (blocks,), "fp32", "dequantised.absmax", blocks, product=1)


def _values(tape: Tape, weight: Param, _made_before: Tensor | None) -> Tensor:
    """The weight as a product takes it; what was made before it lives until it is there, or as its caller holds it."""
    assert weight.packed is not None
    moved = weight.packed.data_bytes(weight.numel) + weight.packed.constant_bytes(weight.shape)
    return aten.new(tape, weight.shape, weight.dtype, "dequantised", moved, product=1)  # one kernel as it is


def _clone(tape: Tape, x: Tensor, label: str) -> Tensor:
    node = tape.node((x,), (), lambda tape, grads, saved: [grads[0]])
    out = aten.new(tape, x.shape, x.dtype, f"{label}.clone", x.nbytes, Kernel.COPY)
    out.node = node
    return out


# ---- LLM.int8() ---------------------------------------------------------------------------------------------------
def _int8_module(tape: Tape, run: LayerWorkload, x: Tensor, weight: Param, bias: Param | None, label: str) -> Tensor:
    """`Linear8bitLt.forward`: [..., n] in x's type, for `x` [..., k] and an int8 `weight` [n, k].

    A bias is added in place. The node keeps `x` as long as the graph lives. `label`: name of the output's storage.
    """
    shape, dtype, rows = x.shape, x.dtype, x.numel // x.shape[-1]
    width, flops = weight.shape[0], 2 * x.numel * weight.shape[0]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        (grad,) = grads
        assert grad is not None
        whole = _int8_values(tape, weight, dtype)
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


def _int8_values(tape: Tape, weight: Param, dtype: str) -> Tensor:
    whole = aten.new(tape, weight.shape, dtype, "dequantised", weight.numel)
    factors = aten.new(tape, (weight.shape[0], 1), "fp32", "dequantised.factors", 0)
    tape.compute(Kernel.ELEMENTWISE, whole.numel, 2 * whole.nbytes + factors.nbytes)
    return whole
