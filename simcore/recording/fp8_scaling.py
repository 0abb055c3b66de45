"""Storage of a matrix in 8 or 4 bits, by recipe: its data, and the scales that restore its values.

TransformerEngine 2.18 `pytorch/tensor/{float8,float8_blockwise,mxfp8,nvfp4}_tensor.py`, `pytorch/csrc/quantizer.cpp`:

 * delayed, tensorwise: one fp32 scale a tensor;
 * blockwise: an fp32 scale for 128 values in a line, for weights for 128 x 128, padded to multiples of 4;
 * mxfp8: a byte (e8m0) for 32 values in a line, padded to 128 x 4;
 * nvfp4: two values a byte, a byte (e4m3) for 16 values in a line, padded to 128 x 4, and an fp32 maximum a tensor. For
   weights 16 x 16 share a scale, which is still written for each line.

A product reads both operands along the dimension that it sums over. Backward sums over the other one, so a tensor is
quantised twice, along its rows and along its columns. Where GEMMs take either layout (Blackwell), a tensor with one
scale needs no second copy (`pytorch/utils.py`, is_non_tn_fp8_gemm_supported).
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

__all__ = ["RECIPES", "Scaling", "in_model", "matched"]

RECIPES: Final = ("tensorwise", "delayed", "blockwise", "mxfp8", "nvfp4")
_BLOCK = 128
_LINES = {"mxfp8": 32, "nvfp4": 16}
"""Values that share a scale, for recipes whose scales are bytes."""
_ALIGNED = {"mxfp8": 32, "nvfp4": 128}
"""Multiple to which an expert's rows are padded (core 0.16.1 `fp8_utils.py` get_fp8_align_size, `fp4_utils.py`, TE)."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Recipe by which matrices are stored in 8 or 4 bits on one kind of device.

    `recipe`: one of `RECIPES`. `transposes`: the device's GEMMs read 8-bit operands only along contiguous rows
    (Hopper).
    """

    recipe: str
    transposes: bool

    @property
    def is_per_tensor(self) -> bool:
        """True if a tensor has one scale (delayed, tensorwise), False if it has one for each block of values."""
        return self.recipe in ("delayed", "tensorwise")

    @property
    def width(self) -> float:
        """Bytes of one element of one copy, with its part of the scales of blocks.

        Padding, and the scale of a tensor that has one scale, are not in it.
        """
        each = 0.5 if self.recipe == "nvfp4" else 1.0
        return each + (1 / _LINES[self.recipe] if self.recipe in _LINES else (self.recipe == "blockwise") * 4 / _BLOCK)

    @property
    def takes_maximum(self) -> bool:
        """True if a tensor is read twice: first for its maximum, then to be quantised (tensorwise, nvfp4)."""
        return self.recipe in ("tensorwise", "nvfp4")

    @property
    def has_columns(self) -> bool:
        """True if two quantised copies of a tensor are stored: one along rows, one along columns.

        With one scale a tensor the second is the transposed tensor.
        """
        return self.transposes or not self.is_per_tensor

    def padded_rows(self, rows: int, experts: int) -> int:
        """Number of rows after padding, all experts together.

        `rows`, the number of all experts' rows, are spread evenly over `experts` (their number), and each expert's part
        is rounded up to the alignment of a product: a multiple of 32 (mxfp8), 128 (nvfp4) or 16 (other recipes).
        """
        return experts * _up(-(-rows // experts), _ALIGNED.get(self.recipe, 16))

    def copy_bytes(self, rows: int, columns: int, *, along_columns: bool = False, squares: bool = False) -> int:
        """Bytes of one quantised copy of a (rows, columns) matrix, data and scales.

        `along_columns`: values that share a scale lie in a column, not in a row; `squares`: they are a block of 128 x
        128 (blockwise only). Without effect where a tensor has one scale of 4 bytes.
        """
        scales = self._scale_bytes(rows, columns, along_columns=along_columns, squares=squares)
        return self.data_bytes(rows * columns) + scales

    def data_bytes(self, numel: int) -> int:
        """Bytes of `numel` quantised values without their scales: half a byte each in nvfp4, else one."""
        return numel // 2 if self.recipe == "nvfp4" else numel

    def _scale_bytes(self, rows: int, columns: int, *, along_columns: bool, squares: bool) -> int:
        if self.is_per_tensor:
            return 4
        summed, other = (rows, columns) if along_columns else (columns, rows)
        if self.recipe in _LINES:
            lines = _up(other, _BLOCK) * _up(-(-summed // _LINES[self.recipe]), 4)
            return lines + 4 * (self.recipe == "nvfp4")
        if squares:
            return 4 * -(-other // _BLOCK) * _up(-(-summed // _BLOCK), 4)
        return 4 * -(-summed // _BLOCK) * _up(other, 4)


def in_model(path: str, *, further: bool) -> str:
    """Name of a layer's module in Megatron-Core's model, as if of layer 0: `decoder.layers.0.{path}`.

    `path`: the module's name inside the layer. `further`: the layer belongs to multi-token prediction, so the name is
    `mtp.layers.0.{path}`.
    """
    return f"{'mtp' if further else 'decoder'}.layers.0.{path}"


def matched(matchers: str, name: str) -> str:
    """Recipe of the first pattern that matches the module name `name`; "" if none matches.

    The recipe is one of `RECIPES`, or "bf16". `matchers`: "pattern=recipe;pattern=recipe...", with glob patterns. Core
    0.16.1 `quantization/quant_config.py`, RecipeConfig.match, with glob matchers.
    """
    pairs = (matcher.partition("=") for matcher in matchers.split(";"))
    return next((recipe for pattern, _, recipe in pairs if fnmatchcase(name, pattern)), "")


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
