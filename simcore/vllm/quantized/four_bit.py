"""bitsandbytes in 4 bits: two values a byte, a scale in fp32 for 64 of them, whatever the checkpoint's double scales.

vLLM 0.12.0 `model_executor/layers/quantization/bitsandbytes.py` BitsAndBytesLinearMethod; `model_loader/
bitsandbytes_loader.py`: each matrix is quantised for itself after tensor parallelism has cut it, its state has scales
that are made whole again (`_dequantize_dq`) and a table of 16 values (bitsandbytes 0.48 `functional.py` QuantState).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.tensor import TAKEN, UNGATED, Tensor, named

__all__ = ["FourBits"]

_BLOCK: Final = 64
_TABLE: Final = 16


@dataclass(frozen=True, slots=True)
class FourBits:
    """NF4 or FP4. `from_file`: the checkpoint is quantised already, which vLLM does not cut for tensor parallelism."""

    from_file: bool

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        return named(linear, ("weight", (linear.inputs * linear.outputs // 2, 1), "uint8"))

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; the states of merged matrices, numbered as vLLM does."""
        states = [row for number, part in enumerate(linear.parts) for row in (
            (f"bnb_quant_state.{number}.absmax", (-(-part * linear.inputs // _BLOCK),), "fp32"),
            (f"bnb_quant_state.{number}.code", (_TABLE,), "fp32"))]
        return self.created(linear) + named(linear, *states)

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        if linear.is_ungated:
            return UNGATED
        if linear.is_experts:
            return "experts in 4 bits of bitsandbytes, which every pass makes whole again", ""
        if self.from_file and linear.ranks > 1:
            return ("a checkpoint that bitsandbytes has quantised", "vLLM 0.12.0 bitsandbytes_loader.py: Prequant "
                    "BitsAndBytes models with tensor parallelism is not supported")
        return TAKEN
