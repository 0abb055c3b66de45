"""MXFP8 weights that a trainer sends: a value a byte, an exponent a byte for 32 of them along the inputs.

vLLM 0.25.1 `model_executor/layers/quantization/modelopt.py` ModelOptMxFp8LinearMethod, whose kernel NeMo RL 7ea279ab
`models/generation/vllm/quantization/fp8.py` puts in place: process_weights_after_loading_mxfp8_linear keeps the
exponents as they come beside a copy in tiles of 128 x 4 (vLLM `utils/mxfp8_utils.py` swizzle_mxfp8_scale), and
process_weights_after_loading_mxfp8_moe does so for experts, whose columns of exponents are padded to 4. ParallelLMHead
takes the method too (modelopt.py get_quant_method), which Fp8Config's does not. For compute capability 10: below it
vLLM chooses Marlin, which NeMo RL refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.tensor import TAKEN, Tensor, named

__all__ = ["Mxfp8"]

_BLOCK: Final = 32
_ROWS, _COLUMNS = 128, 4
_SOURCE: Final = "vLLM 0.25.1 layers/quantization/modelopt.py create_weights"


@dataclass(frozen=True, slots=True)
class Mxfp8:
    """NeMo RL's `vllm_cfg.is_mx`."""

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        return named(linear, ("weight", (linear.outputs, linear.inputs), "fp8"),
                     ("weight_scale", (linear.outputs, linear.inputs // _BLOCK), "uint8"))

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; exponents twice."""
        came = (linear.outputs, linear.inputs // _BLOCK)
        return named(linear, ("weight", (linear.outputs, linear.inputs), "fp8"),
                     ("weight_scale", (_tiled(linear),), "uint8"), ("weight_scale_from_checkpoint", came, "uint8"))

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        if linear.inputs % _BLOCK:
            return (f"{linear.name}: {linear.inputs} inputs on a rank are not divisible by {_BLOCK}",
                    f"{_SOURCE}: MXFP8 requires input dimension to be divisible by 32")
        if linear.is_experts and linear.outputs % _ROWS:
            return (f"{linear.name}: {linear.outputs} outputs on a rank are not divisible by {_ROWS}",
                    "NeMo RL 7ea279ab models/generation/vllm/quantization/fp8.py:1109 _shuffle_mxfp8_moe_batched")
        return TAKEN

    def arranging_bytes(self, linears: Sequence[Linear]) -> int:
        """Most bytes beside the weights while exponents, and experts' values, are arranged after they were loaded.

        `linears`: of one block. Experts (fp8.py:1192): the first matrix with its halves exchanged, both with their rows
        in the kernel's order, and exponents in each of these steps, padded where their columns are no multiple of 4.
        """
        most = max((2 * _tiled(linear) for linear in linears if not linear.is_experts), default=0)
        return max(most, sum(linear.copies * _arranging(linear) for linear in linears if linear.is_experts))


def _arranging(linear: Linear) -> int:
    first, padded = linear.name == "w13", bool(linear.inputs // _BLOCK % _COLUMNS)
    return (1 + first) * linear.inputs * linear.outputs + (2 + first + padded) * _tiled(linear)


def _tiled(linear: Linear) -> int:
    """Exponents of a matrix in tiles of 128 rows and 4 columns."""
    return -(-linear.outputs // _ROWS) * _ROWS * -(-linear.inputs // _BLOCK // _COLUMNS) * _COLUMNS
