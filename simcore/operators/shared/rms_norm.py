"""RMSNorm of transformers 5.23, operator by operator (`models/llama`, `nemotron_h`, `gpt_oss`, `gemma`, `gemma4`).

And Automodel's in fp32.
"""

from __future__ import annotations

from simcore.operators.shared import aten
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["rms_norm", "rms_norm_by_power", "rms_norm_from_zero", "rms_norm_in_fp32", "wide_norm"]


def rms_norm(tape: Tape, weight: Param, x: Tensor, *, weight_in_fp32: bool) -> Tensor:
    """RMSNorm in fp32, operator by operator; returns a new tensor with the shape and type of `x`.

    `weight_in_fp32`: multiplies by the weight before the cast back, as Nemotron-H does; Llama does it after the cast.
    """
    dtype = x.dtype
    x = aten.cast(tape, x, "fp32")
    variance = aten.mean(tape, aten.square(tape, x))
    x = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, variance)))
    if weight_in_fp32:
        return aten.cast(tape, aten.mul(tape, aten.cast(tape, weight, "fp32"), x), dtype)
    return aten.mul(tape, weight, aten.cast(tape, x, dtype))


def rms_norm_in_fp32(tape: Tape, weight: Param, x: Tensor) -> Tensor:
    """RMSNorm of `x` in fp32 (`GptOssRMSNorm`, `Olmo2RMSNorm`), in its shape and type.

    The product with the weight, in the type in which it is stored, is in fp32 too.
    """
    dtype = x.dtype
    x = aten.cast(tape, x, "fp32")
    variance = aten.mean(tape, aten.square(tape, x))
    x = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, variance)))
    return aten.cast(tape, aten.mul(tape, weight, x), dtype)


def rms_norm_from_zero(tape: Tape, weight: Param, x: Tensor) -> Tensor:
    """RMSNorm that multiplies by one more than the weight, all in fp32 (`GemmaRMSNorm`); like `x`."""
    dtype = x.dtype
    x = aten.cast(tape, x, "fp32")
    x = aten.mul(tape, x, aten.rsqrt(tape, aten.add_scalar(tape, aten.mean(tape, aten.square(tape, x)))))
    x = aten.mul(tape, x, aten.add_scalar(tape, aten.cast(tape, weight, "fp32")))
    return aten.cast(tape, x, dtype)


def rms_norm_by_power(tape: Tape, weight: Param | None, x: Tensor) -> Tensor:
    """RMSNorm in fp32 that takes the mean square to the power of -0.5 (`Gemma4RMSNorm`); like `x`.

    `weight` None for a norm without one.
    """
    dtype = x.dtype
    x = _by_power(tape, aten.cast(tape, x, "fp32"))
    if weight is not None:
        x = aten.mul(tape, x, aten.cast(tape, weight, "fp32"))
    return aten.cast(tape, x, dtype)


def _by_power(tape: Tape, x: Tensor) -> Tensor:
    mean = aten.add_scalar(tape, aten.mean(tape, aten.square(tape, x)))
    return aten.mul(tape, x, aten.square(tape, mean))  # pow too, and as many kernels in backward


def wide_norm(tape: Tape, x: Tensor, weight: Param, name: str = "norm") -> Tensor:
    """RMSNorm of `x` [..., hidden] by the custom operator of `rms_norm: torch_fp32`, which keeps nothing; like `x`.

    `F.rms_norm(x.float(), ..., weight.float()).to(x.dtype)`: a compiler does not see into it, so that each of its
    kernels writes a tensor (nemo-automodel 0.7.0 `models/common/utils.py`, _float32_rms_norm_impl).
    """
    cast_x, cast_weight = (one if one.dtype == "fp32" else aten.new(tape, one.shape, "fp32", f"{name}_fp32", one.nbytes)
                           for one in (x, weight))
    made = aten.new(tape, x.shape, "fp32", f"{name}_fp32", cast_x.nbytes, Kernel.NORM, 4 * x.numel)
    rstd = tape.empty(x.shape[:-1], "fp32", "norm_rstd")
    del rstd, cast_x, cast_weight
    return made if x.dtype == "fp32" else aten.new(tape, x.shape, x.dtype, name, made.nbytes)
