"""Weights in 4 or 8 bits packed into int32: AWQ, GPTQ and compressed-tensors, as their kernels hold them.

vLLM 0.12.0 `model_executor/layers/quantization/awq_marlin.py`, `gptq_marlin.py`, `compressed_tensors/schemes/
compressed_tensors_wNa16.py`, `compressed_tensors_moe.py` CompressedTensorsWNA16MarlinMoEMethod; kernels and what they
take: `kernels/mixed_precision/__init__.py` choose_mp_linear_kernel (Machete on Hopper, else Marlin),
`utils/marlin_utils.py` check_marlin_supports_shape, check_moe_marlin_supports_layer, `utils/machete_utils.py`. Marlin's
workspace has one int32 a multiprocessor, of experts four (marlin_make_workspace_new).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.tensor import TAKEN, UNGATED, Gpu, Tensor, named

__all__ = ["Integers"]

Row = tuple[str, tuple[int, ...], str]
_WORD: Final = 32
_TILE: Final = 16
_HOPPER: Final = (9, 0)
_PER_SM: Final = 4
"""Words of experts' workspace a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Integers:
    """A checkpoint with `bits` a weight, a scale of 16 bits for `group` inputs of an output (-1: all inputs)."""

    family: Literal["awq", "gptq", "compressed-tensors"]
    bits: int
    group: int
    gpu: Gpu

    # ---- as created --------------------------------------------------------------------------------------------------
    def created(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`."""
        rows = {"awq": self._awq, "gptq": self._gptq, "compressed-tensors": self._compressed}[self.family](linear)
        early = self.family != "compressed-tensors" and linear.name == "w13"
        return named(linear, *rows) + self._workspace(linear) * early

    def _groups(self, linear: Linear) -> int:
        return linear.inputs // self.group if self.group > 0 else 1

    def _awq(self, linear: Linear) -> list[Row]:
        groups, columns = self._groups(linear), linear.outputs * self.bits // _WORD
        return [("qweight", (linear.inputs, columns), "int32"), ("qzeros", (groups, columns), "int32"),
                ("scales", (groups, linear.outputs), "bf16")]

    def _gptq(self, linear: Linear) -> list[Row]:
        groups, columns = self._groups(linear), linear.outputs * self.bits // _WORD
        rows: list[Row] = [("qweight", (linear.inputs * self.bits // _WORD, linear.outputs), "int32"),
                           ("scales", (groups, linear.outputs), "bf16"),
                           ("qzeros", (groups, columns), "bf16" if linear.is_experts else "int32"),
                           ("g_idx", (linear.inputs,), "int32")]
        return rows + [("g_idx_sort_indices", (linear.inputs,), "int32")] * linear.is_experts

    def _compressed(self, linear: Linear) -> list[Row]:
        rows, groups = linear.inputs * self.bits // _WORD, self._groups(linear)
        if not linear.is_experts:
            return [("weight_packed", (linear.outputs, rows), "int32"),
                    ("weight_scale", (linear.outputs, groups), "bf16"), ("weight_shape", (2,), "int64")]
        return [("weight_packed", (rows, linear.outputs), "int32"), ("weight_scale", (groups, linear.outputs), "bf16"),
                ("weight_shape", (2,), "bf16"), ("weight_g_idx", (linear.inputs,), "int32"),
                ("g_idx_sort_indices", (linear.inputs,), "int32")]

    # ---- as held -----------------------------------------------------------------------------------------------------
    def held(self, linear: Linear) -> tuple[Tensor, ...]:
        """As `Method`; indices that no order of activations needs are gone, zero points of AWQ stay."""
        if self.family == "awq" and not linear.is_experts and not self._has_marlin(linear):
            return self.created(linear)
        if self._has_machete(linear):
            return self._by_machete(linear)
        packed = (linear.inputs // _TILE, linear.outputs * _TILE * self.bits // _WORD)
        groups, zeros = self._groups(linear), linear.outputs * self.bits // _WORD
        scales = (groups, linear.outputs)
        if self.family == "compressed-tensors":
            shape: Row = ("weight_shape", (2,), "bf16" if linear.is_experts else "int64")
            rows: list[Row] = [("weight_packed", packed, "int32"), ("weight_scale", scales, "bf16"), shape]
        else:
            rows = [("qweight", packed, "int32"), ("scales", scales, "bf16")]
            if self.family == "awq" or linear.is_experts:
                rows.append(("qzeros", (groups, zeros), "int32" if self.family == "awq" else "bf16"))
        return named(linear, *rows) + self._workspace(linear)

    def _by_machete(self, linear: Linear) -> tuple[Tensor, ...]:
        """The same bytes as the checkpoint's; GPTQ's zero points and indices stay, though no kernel reads them."""
        packed = (linear.inputs * self.bits // _WORD, linear.outputs)
        scales = (self._groups(linear), linear.outputs)
        if self.family == "compressed-tensors":
            return named(linear, ("weight_packed", packed, "int32"), ("weight_scale", scales, "bf16"),
                         ("weight_shape", (2,), "int64"))
        return self.created(linear)

    def _workspace(self, linear: Linear) -> tuple[Tensor, ...]:
        if linear.name == "w2":
            return ()
        return (Tensor("workspace", (self.gpu.sms * (_PER_SM if linear.is_experts else 1),), "int32"),)

    # ---- what kernels take -------------------------------------------------------------------------------------------
    def _has_machete(self, linear: Linear) -> bool:
        """True where Machete runs: on Hopper only, before Marlin; AWQ has Marlin alone."""
        return (self.family != "awq" and not linear.is_experts and self.gpu.capability == _HOPPER
                and self.group in (-1, 64, 128) and linear.inputs % 64 == 0 and linear.outputs % 128 == 0)

    def _has_marlin(self, linear: Linear) -> bool:
        if linear.is_experts:
            columns = linear.inputs if linear.name == "w13" else linear.outputs
            ffn = linear.parts[0] if linear.name == "w13" else linear.inputs
            return columns % 128 == 0 and ffn % max(64, self.group) == 0
        whole = self.group >= linear.full or self.group < 0
        return linear.outputs % 64 == 0 and linear.inputs % 128 == 0 and (whole or linear.inputs % self.group == 0)

    def refusal(self, linear: Linear) -> tuple[str, str]:
        """As `Method`."""
        if linear.is_ungated:
            return UNGATED
        if self._has_marlin(linear) or self._has_machete(linear):
            return TAKEN
        shape = f"{linear.name}: {linear.inputs} inputs and {linear.outputs} outputs on a rank, groups of {self.group}"
        if linear.is_experts:
            return f"{shape}: experts that Marlin does not take, for which vLLM has other kernels", ""
        if self.family == "awq" and linear.inputs % max(self.group, 1) == 0 and linear.outputs % (_WORD // 4) == 0:
            return TAKEN  # AWQ's slower kernels take it
        return shape, ("vLLM 0.12.0 kernels/mixed_precision/__init__.py choose_mp_linear_kernel: Failed to find a "
                       "kernel; Marlin takes inputs divisible by 128 and the group, outputs divisible by 64")
