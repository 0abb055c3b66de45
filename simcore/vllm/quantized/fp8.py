"""FP8 weights: quantised while loading, or read from a checkpoint with one scale a matrix, a channel or a block.

vLLM 0.12.0 `model_executor/layers/quantization/fp8.py` Fp8LinearMethod, Fp8MoEMethod; `compressed_tensors/schemes/
compressed_tensors_w8a8_fp8.py`, `compressed_tensors_moe.py` CompressedTensorsW8A8Fp8MoEMethod; `modelopt.py`
ModelOptFp8LinearMethod, ModelOptFp8MoEMethod. For GPUs whose cores take fp8 (compute capability 8.9 and later);
without DeepGEMM, which lays out scales of blocks in another way (`utils/fp8_utils.py` maybe_post_process_fp8_weight_
block).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.tensor import TAKEN, UNGATED, Tensor, named

__all__ = ["REFIT_BLOCK", "Fp8Blocks", "Fp8Channels", "Fp8Matrices", "OnlineFp8", "quantising_bytes"]

_FIRST: Final = "0.12.0"


def _weight(linear: Linear, dtype: str, *, turned: bool = False) -> tuple[str, tuple[int, ...], str]:
    """Row of the weight; `turned`: a linear's, not an expert's, is held with its inputs first."""
    shape = (linear.outputs, linear.inputs)
    return "weight", shape[::-1] if turned and not linear.is_experts else shape, dtype


@dataclass(frozen=True, slots=True)
class OnlineFp8:
    """`quantization: fp8` over a checkpoint of 16 bits: the model lies in 16 bits first, then layer by layer in 8."""

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; experts' scales are there already."""
        scale = [("weight_scale", (2,) if linear.name == "w13" else (), "fp32")] if linear.is_experts else []
        return named(linear, _weight(linear, "bf16"), *scale)

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; one scale for a merged linear, or for an expert's matrix."""
        return named(linear, _weight(linear, "fp8", turned=True),
                     ("weight_scale", () if linear.is_experts else (1,), "fp32"))

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        return UNGATED if linear.is_ungated else TAKEN


@dataclass(frozen=True, slots=True)
class Fp8Matrices:
    """A checkpoint with one scale a matrix. `static`: activations have a scale too.

    `family`: "fp8", "compressed-tensors" or "modelopt", whose experts differ.
    """

    family: Literal["fp8", "compressed-tensors", "modelopt"]
    static: bool

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        return named(linear, _weight(linear, "fp8"), *self._scales(linear))

    def _scales(self, linear: Linear) -> list[tuple[str, tuple[int, ...], str]]:
        parts = (len(linear.parts),)
        if linear.is_experts:
            rows: list[tuple[str, tuple[int, ...], str]] = [
                ("weight_scale", parts if linear.name == "w13" else (), "fp32"), ("input_scale", (), "fp32")]
        else:
            rows = [("weight_scale", parts, "fp32"), ("input_scale", parts, "fp32")]
        return rows if self.static else rows[:1]

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; of several scales the largest is left, of activations one for all experts."""
        rows = [_weight(linear, "fp8", turned=True)]
        if not linear.is_experts:
            rows += [("weight_scale", (), "fp32"), ("input_scale", (), "fp32")][: 1 + self.static]
            return named(linear, *rows)
        bare = self.family == "modelopt" and linear.is_ungated
        held = named(linear, *rows, ("weight_scale", (1,) if bare else (), "fp32"))
        return held + self._of_activations(linear)

    def _of_activations(self, linear: Linear) -> tuple[Tensor, ...]:
        """Scales that are not an expert's; modelopt multiplies them for kernels (register_moe_scaling_factors)."""
        if not self.static:
            return ()
        scale = Tensor(f"{linear.name}_input_scale", (), "fp32")
        if self.family != "modelopt":
            return (scale,)
        each = (linear.copies, 1) if linear.is_ungated else (linear.copies,)
        if linear.name == "w2":
            return (scale, Tensor("output2_scales_scalar", each, "fp32"), Tensor("w2_input_scale_inv", (), "fp32"))
        return (scale, Tensor("output1_scales_scalar", each, "fp32"),
                Tensor("output1_scales_gate_scalar", each, "fp32"))

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        return UNGATED if linear.is_ungated and self.family != "modelopt" else TAKEN


@dataclass(frozen=True, slots=True)
class Fp8Channels:
    """A checkpoint of compressed-tensors with one scale for each output; activations are scaled token by token."""

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        return named(linear, _weight(linear, "fp8"), ("weight_scale", (linear.outputs, 1), "fp32"))

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        return named(linear, _weight(linear, "fp8", turned=True), ("weight_scale", (linear.outputs, 1), "fp32"))

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        return UNGATED if linear.is_ungated else TAKEN


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """A checkpoint with one scale for each block of `rows` outputs x `columns` inputs.

    `scale`: name of the scales as created; "weight_scale_inv", of compressed-tensors "weight_scale". `kept`: name of a
    linear's as held. `release`: vLLM's version.
    """

    rows: int
    columns: int
    scale: str = "weight_scale_inv"
    kept: str = "weight_scale"
    release: str = _FIRST

    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; blocks of a linear are counted over its merged matrices, of experts in each."""
        return named(linear, _weight(linear, "fp8"), (self.scale, self._blocks(linear), "fp32"))

    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        name = self.scale if linear.is_experts else self.kept
        return named(linear, _weight(linear, "fp8"), (name, self._blocks(linear), "fp32"))

    def _blocks(self, linear: Linear) -> tuple[int, int]:
        each = linear.parts if linear.is_experts else (linear.outputs,)
        return sum(-(-part // self.rows) for part in each), -(-linear.inputs // self.columns)

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`; `utils/fp8_utils.py` validate_fp8_block_shape, and Fp8MoEMethod.create_weights for experts.

        0.25.1 makes a merged linear whose matrices share blocks (`linear.py` _maybe_allow_fp8_block_shape_mismatch).
        """
        if linear.is_ungated:
            return UNGATED
        by_rows = linear.ranks > 1 and linear.inputs != linear.full
        if by_rows and linear.inputs % self.columns:
            return (f"{linear.name}: {linear.inputs} inputs on a rank are not divisible by blocks of {self.columns}",
                    f"vLLM {self.release} validate_fp8_block_shape: weight quantization block_k")
        if self.release != _FIRST and not linear.is_experts and len(linear.parts) > 1:
            split = any(part % self.rows for part in linear.parts)
            return (f"{linear.name}: matrices of {linear.parts} on a rank that share blocks of {self.rows}",
                    "") if split else TAKEN
        by_columns = (linear.ranks > 1 and not by_rows) or linear.name == "w13"
        if any(part % self.rows for part in (linear.parts if by_columns else linear.parts[:-1])):
            return (f"{linear.name}: outputs {linear.parts} on a rank are not divisible by blocks of {self.rows}",
                    f"vLLM {self.release} validate_fp8_block_shape: weight quantization block_n")
        return TAKEN


def quantising_bytes(rows: int, columns: int) -> int:
    """Most bytes that NeMo RL takes to quantise a matrix of `rows` x `columns` of a refit, besides the matrix.

    NeMo RL 7ea279ab `models/generation/vllm/quantization/fp8.py` cast_tensor_to_fp8_blockwise: padded to blocks, in
    fp32, times its scales, clamped; four numbers for each block. Every expert is a matrix.
    """
    blocks = -(-rows // REFIT_BLOCK) * -(-columns // REFIT_BLOCK)
    return blocks * (_WIDE_COPIES * REFIT_BLOCK**2 + _BLOCK_NUMBERS) * _FP32


REFIT_BLOCK: Final = 128
"""Rows and columns of a block, of which each has a scale (`FP8_BLOCK_QUANT_KWARGS`)."""
_WIDE_COPIES: Final = 3
_BLOCK_NUMBERS: Final = 4
_FP32: Final = 4
