"""Storage of a matrix in 8 or 4 bits: its data, and the scales or other constants that restore its values.

`PackedWeights`: frozen weights, which bitsandbytes and torchao pack once. `Scaling`: operands of a product, which
TransformerEngine quantises by a recipe.

[Note: a matrix in 4 bits]
bitsandbytes 0.50.2 `functional.py`, quantize_4bit, `nn/modules.py`, Params4bit: values of NF4 or FP4 lie two in a byte,
as a column of the storage type (uint8, or the type that FSDP cuts). Constants are attributes of the weight, not
parameters, so they are not sharded. A block of values has an fp32 maximum; double quantisation makes it a byte, with an
fp32 maximum for 256 of those, their offset, and a table of 256 fp32 values for each weight (quantize_blockwise copies
it). Each weight also has a table of 16 fp32 values. torchao 0.18 `quantization/quantize_/workflows/nf4/nf4_tensor.py`,
NF4Tensor: always quantised twice; maxima are bytes, their factors, one for 256 of them, the mean and the table of 16
have the weight's own type of 16 bits. All of it is one tensor that knows the weight's shape: FSDP cuts its rows,
factors and all.

[Note: LLM.int8()]
bitsandbytes 0.50.2 `nn/modules.py`, Int8Params: the matrix itself in int8, and the maximum of each row in fp32, which
is an attribute too.

[Note: recipes and their scales]
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

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from simcore.units import dtype_bytes

__all__ = ["RECIPES", "PackedWeights", "Scaling", "in_model", "matched"]

RECIPES: Final = ("tensorwise", "delayed", "blockwise", "mxfp8", "nvfp4")
_NESTED: Final = 256
"""Maxima that share a second maximum, and entries of the table that restores them."""
_TABLE: Final = 16
"""Number of different values of 4 bits."""
_BLOCK = 128
"""Values in a line that share a scale with the recipe blockwise; side of a square block of weights."""
_LINES = {"mxfp8": 32, "nvfp4": 16}
"""Values that share a scale, for recipes whose scales are bytes."""
_ALIGNED = {"mxfp8": 32, "nvfp4": 128}
"""Multiple to which an expert's rows are padded (core 0.16.1 `fp8_utils.py` get_fp8_align_size, `fp4_utils.py`, TE)."""


# ---- frozen weights --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Storage format of frozen weight matrices: 4 bits or int8.

    `format`: its name, "int8" for LLM.int8(), where a block is a row. `block_size`: values that share a maximum;
    `double_quant`: these maxima are quantised too; `storage`: dtype of the stored tensor. `is_tensor`: torchao's
    format, one tensor with its constants.
    """

    format: str
    block_size: int
    double_quant: bool
    storage: str = "uint8"
    is_tensor: bool = False

    @property
    def is_int8(self) -> bool:
        """True for LLM.int8(): the matrix in int8 and a maximum for each row ([Note: LLM.int8()])."""
        return self.format == "int8"

    @property
    def is_column(self) -> bool:
        """True if the values are packed into a column, so the stored tensor has another shape than the matrix."""
        return not (self.is_tensor or self.is_int8)

    @property
    def values_a_row(self) -> int:
        """Number of a matrix's values in one element of the stored tensor (sharding cuts no element).

        An element of a packed column holds two values a byte of `storage`; otherwise it is 1.
        """
        return 2 * dtype_bytes(self.storage) if self.is_column else 1

    def rows(self, numel: int) -> int:
        """Number of elements, rounded up, of the stored tensor of a matrix with `numel` values."""
        return -(-numel // self.values_a_row)

    def data_bytes(self, numel: int) -> int:
        """Bytes of the packed values of a matrix of `numel` values.

        With the constants that are sharded with them, which only torchao's format has (`is_tensor`).
        """
        if self.is_tensor:
            return numel // 2 + self.blocks(numel) + 2 * math.ceil(self.blocks(numel) / _NESTED)
        return self.rows(numel) * dtype_bytes(self.storage)

    def constant_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes, on every rank, of the unsharded constants that restore a matrix of that shape.

        4 bits: maxima of its blocks, their own constants, tables. int8: a maximum for each row. torchao's format: the
        mean and the table.
        """
        if self.is_tensor:
            return 2 * _TABLE + 2
        if self.is_int8:
            return 4 * shape[0]
        numel = math.prod(shape)
        blocks, tables = self.blocks(numel), 4 * _TABLE
        if not self.double_quant:
            return 4 * blocks + tables
        return blocks + 4 * math.ceil(blocks / _NESTED) + 4 * _NESTED + 4 + tables

    def blocks(self, numel: int) -> int:
        """Number of blocks, and so of maxima, of `numel` values, rounded up."""
        return -(-numel // self.block_size)


# ---- recipes ---------------------------------------------------------------------------------------------------------
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

    def padded_rows(self, rows: int, experts: int, multiple: int = 0) -> int:
        """Number of rows after padding, all experts together.

        `rows`, the number of all experts' rows, are spread evenly over `experts` (their number), and each expert's part
        is rounded up to the alignment of a product: a multiple of 32 (mxfp8), 128 (nvfp4) or 16 (other recipes),
        or of `multiple` where it is not 0.
        """
        return experts * _up(-(-rows // experts), multiple or _ALIGNED.get(self.recipe, 16))

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
