"""NVFP4 weights of ModelOpt's and compressed-tensors' checkpoints: two values a byte, a scale in fp8 for 16 of them.

vLLM 0.12.0 `modelopt.py` ModelOptNvFp4LinearMethod, ModelOptNvFp4FusedMoE; `compressed_tensors/schemes/
compressed_tensors_w4a4_nvfp4.py`, `compressed_tensors_moe.py` CompressedTensorsW4A4Nvfp4MoEMethod;
`utils/quant_utils.py` swizzle_blockscale: rows of scales are padded to 128, columns to 4. For GPUs whose cores take fp4
(compute capability 10.0 and later), by cutlass or FlashInfer's cutlass, which hold the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.tensor import TAKEN, UNGATED, Tensor, named

__all__ = ["Nvfp4"]

_BLOCK: Final = 16
_ROWS, _COLUMNS = 128, 4


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """A checkpoint in NVFP4 whose activations are quantised too."""

    family: Literal["modelopt", "compressed-tensors"]

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; a scale of the whole matrix, and one of its inputs, for each merged matrix."""
        each = (len(linear.parts),) if linear.name != "w2" else ()
        weight, (own, inputs) = self._weight, self._wholes
        return named(linear, (weight, (linear.outputs, linear.inputs // 2), "uint8"),
                     ("weight_scale", (linear.outputs, linear.inputs // _BLOCK), "fp8"),
                     (own, each, "fp32"), (inputs, each, "fp32"))

    @property
    def _weight(self) -> str:
        return "weight" if self.family == "modelopt" else "weight_packed"

    @property
    def _wholes(self) -> tuple[str, str]:
        """Names of the scales of a whole matrix: of its weights, of its inputs."""
        return (("weight_scale_2", "input_scale") if self.family == "modelopt"
                else ("weight_global_scale", "input_global_scale"))

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; scales of blocks are padded, scales of activations multiplied for the kernels."""
        scale = (_up(linear.outputs, _ROWS), _up(linear.inputs // _BLOCK, _COLUMNS))
        if linear.is_experts:
            return self._of_experts(linear, scale)
        whole: list[tuple[str, tuple[int, ...], str]] = [(name, (), "fp32") for name in (*self._wholes, "alpha")]
        inverse = [("input_scale_inv", (), "fp32")] * (self.family == "modelopt")
        return named(linear, (self._weight, (linear.outputs, linear.inputs // 2), "uint8"),
                     ("weight_scale", scale, "fp8"), *whole, *inverse)

    def _of_experts(self, linear: Linear, scale: tuple[int, int]) -> tuple[Tensor, ...]:
        first, each = linear.name == "w13", (linear.copies,)
        parts = (len(linear.parts),) if first else ()
        kept = [(name, parts, "fp32") for name in self._wholes if name != "weight_scale_2"]
        rows = named(linear, ("weight", (linear.outputs, linear.inputs // 2), "uint8"), ("weight_scale", scale, "fp8"),
                     *kept)
        behind = linear.copies * len(linear.parts) if first and self.family == "modelopt" else 0
        alpha = Tensor("g1_alphas" if first else "g2_alphas", each, "fp32")
        found = (*rows, Tensor(f"{linear.name}_weight_scale_2", each, "fp32", behind), alpha)
        if self.family == "modelopt" or first:
            return (*found, Tensor(f"{linear.name}_input_scale_quant", each, "fp32"))
        return found  # w2_input_scale_quant is w2_input_global_scale

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        if linear.is_ungated and self.family != "modelopt":
            return UNGATED
        if linear.is_ungated:
            return ("routed experts without a gate in NVFP4, which vLLM 0.12.0 runs by FlashInfer alone, with "
                    "VLLM_USE_FLASHINFER_MOE_FP4=1 (modelopt.py ModelOptNvFp4FusedMoE.apply)", "")
        if linear.inputs % _BLOCK:
            return (f"{linear.name}: {linear.inputs} inputs on a rank are not divisible by {_BLOCK}",
                    "vLLM 0.12.0 modelopt.py: Unsupported model when in features size is not multiple of 16")
        return TAKEN


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
