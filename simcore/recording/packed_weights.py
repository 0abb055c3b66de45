"""Storage of a frozen matrix in 4 or 8 bits, and of the constants that restore its values.

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from simcore.units import dtype_bytes

__all__ = ["PackedWeights"]

_NESTED: Final = 256
"""Maxima that share a second maximum, and entries of the table that restores them."""
_TABLE: Final = 16
"""Number of different values of 4 bits."""


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
