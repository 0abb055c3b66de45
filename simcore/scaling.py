"""How a matrix lies in 8 bits: its data, and the scales that give it back, by recipe.

TransformerEngine 2.18 `pytorch/tensor/{float8,float8_blockwise,mxfp8}_tensor.py`, `pytorch/csrc/quantizer.cpp`:

 * delayed, tensorwise: one fp32 scale a tensor;
 * blockwise: an fp32 scale for 128 values in a line, for weights for 128 x 128, padded to multiples of 4;
 * mxfp8: a byte (e8m0) for 32 values in a line, padded to 128 x 4.

A product reads both operands along the dimension that it sums over. Backward sums over the other one, so a tensor is
quantised twice, along its rows and along its columns. Where GEMMs take either layout (Blackwell), a tensor with one
scale needs no second copy (`pytorch/utils.py`, is_non_tn_fp8_gemm_supported).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["RECIPES", "Scaling"]

RECIPES: Final = ("tensorwise", "delayed", "blockwise", "mxfp8")
_BLOCK, _LINE = 128, 32


@dataclass(frozen=True, slots=True)
class Scaling:
    """A recipe on a device. `transposes`: its GEMMs read fp8 along contiguous rows alone (Hopper)."""

    recipe: str
    transposes: bool

    @property
    def is_per_tensor(self) -> bool:
        return self.recipe in ("delayed", "tensorwise")

    @property
    def width(self) -> float:
        """Bytes of one element with its part of the scales."""
        return 1 + {"blockwise": 4 / _BLOCK, "mxfp8": 1 / _LINE}.get(self.recipe, 0.0)

    @property
    def has_columns(self) -> bool:
        """Whether columns are a copy of their own."""
        return self.transposes or not self.is_per_tensor

    def padded_rows(self, rows: int, experts: int) -> int:
        """`rows` spread evenly over experts, each filled up to what a product asks (core `get_fp8_align_size`)."""
        return experts * _up(-(-rows // experts), _LINE if self.recipe == "mxfp8" else 16)

    def copy_bytes(self, rows: int, columns: int, *, along_columns: bool = False, squares: bool = False) -> int:
        """Data and scales of one copy of a (rows, columns) matrix. `squares`: blocks of 128 x 128, as weights have."""
        return rows * columns + self._scale_bytes(rows, columns, along_columns=along_columns, squares=squares)

    def _scale_bytes(self, rows: int, columns: int, *, along_columns: bool, squares: bool) -> int:
        if self.is_per_tensor:
            return 4
        if self.recipe == "mxfp8":
            lines = (_up(-(-rows // _LINE), 4), _up(columns, _BLOCK)) if along_columns else \
                (_up(rows, _BLOCK), _up(-(-columns // _LINE), 4))
            return lines[0] * lines[1]
        summed, other = (rows, columns) if along_columns else (columns, rows)
        if squares:
            return 4 * -(-other // _BLOCK) * _up(-(-summed // _BLOCK), 4)
        return 4 * -(-summed // _BLOCK) * _up(other, 4)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
