"""bitsandbytes in 4 bits: two values a byte, a scale in fp32 for 64 of them, whatever the checkpoint's double scales.

vLLM 0.12.0 `model_executor/layers/quantization/bitsandbytes.py` BitsAndBytesLinearMethod, BitsAndBytesMoEMethod;
`model_loader/bitsandbytes_loader.py`: each matrix is quantised for itself after tensor parallelism has cut it, its
state has scales that are made whole again (`_dequantize_dq`) and a table of 16 values (bitsandbytes 0.48
`functional.py` QuantState). The scales of all experts of a layer are concatenated, with one table
(`_fuse_moe_quant_states`).

A pass dequantises to 16 bits what it multiplies: of a linear one matrix after the other, whose product is copied into
the output (`_apply_bnb_4bit`; one row of inputs has a kernel that reads 4 bits, bitsandbytes 0.48 `autograd/
_functions.py` matmul_4bit); of experts both tensors of the layer at once, all experts, whatever tokens go to
(`_apply_4bit_dequnt`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.tensor import TAKEN, UNGATED, Tensor, named

__all__ = ["WIDE", "FourBits"]

_BLOCK: Final = 64
_TABLE: Final = 16
WIDE: Final = 2
"""Bytes of an element that is dequantised, the format in which the checkpoint was before (bf16)."""


@dataclass(frozen=True, slots=True)
class FourBits:
    """NF4 or FP4. `from_file`: the checkpoint is quantised already, which vLLM does not cut for tensor parallelism."""

    from_file: bool

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        return named(linear, ("weight", (linear.inputs * linear.outputs // 2, 1), "uint8"))

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; the states of merged matrices, numbered as vLLM does; experts of a layer have one state."""
        if linear.is_experts:
            scales = linear.copies * sum(-(-part * linear.inputs // _BLOCK) for part in linear.parts)
            return (*self.created(linear), Tensor(f"{linear.name}_bnb_quant_state.absmax", (scales,), "fp32"),
                    Tensor(f"{linear.name}_bnb_quant_state.code", (_TABLE,), "fp32"))
        states = [row for number, part in enumerate(linear.parts) for row in (
            (f"bnb_quant_state.{number}.absmax", (-(-part * linear.inputs // _BLOCK),), "fp32"),
            (f"bnb_quant_state.{number}.code", (_TABLE,), "fp32"))]
        return self.created(linear) + named(linear, *states)

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        if linear.is_ungated:
            return UNGATED
        if self.from_file and linear.ranks > 1:
            return ("a checkpoint that bitsandbytes has quantised", "vLLM 0.12.0 bitsandbytes_loader.py: Prequant "
                    "BitsAndBytes models with tensor parallelism is not supported")
        return TAKEN

    def unpacked_bytes(self, linears: Sequence[Linear], tokens: int) -> int:
        """Most bytes that a pass of `tokens` tokens adds while it multiplies with these linears of one block.

        A matrix in 16 bits and its product, or all experts of the layer in 16 bits.
        """
        experts = sum(linear.numel for linear in linears if linear.is_experts)
        matrices = (part * (linear.inputs + tokens) for linear in linears if not linear.is_experts
                    for part in linear.parts)
        return WIDE * max(experts, *matrices, 0)
