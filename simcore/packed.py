"""How a frozen matrix lies in 4 bits: its values two in a byte, and the constants that give them back.

[Note: a matrix in 4 bits]
bitsandbytes 0.50.2 `functional.py`, quantize_4bit, `nn/modules.py`, Params4bit: values of NF4 or FP4 lie two in a byte,
as a column of the storage type (uint8, or the type that FSDP cuts). Constants are attributes of the weight, no
parameters: nobody cuts them. A block of values has an fp32 maximum; double quantisation makes it a byte, with an fp32
maximum for 256 of those, their offset, and a table of 256 fp32 values that each weight has for itself
(quantize_blockwise copies it). A table of 16 fp32 values is each weight's own too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from simcore.units import dtype_bytes

__all__ = ["Packed"]

_NESTED: Final = 256
"""Maxima that share one, and values of the table that gives them back."""
_TABLE: Final = 16
"""Values that 4 bits tell apart."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A format of 4 bits. `block_size`: values that share a maximum; `storage`: the type of the packed column."""

    format: str
    block_size: int
    double_quant: bool
    storage: str = "uint8"

    @property
    def values_a_row(self) -> int:
        """Values in one element of the packed column."""
        return 2 * dtype_bytes(self.storage)

    def rows(self, numel: int) -> int:
        """Elements of the packed column of a matrix with `numel` values."""
        return -(-numel // self.values_a_row)

    def data_bytes(self, numel: int) -> int:
        """Of the packed values."""
        return self.rows(numel) * dtype_bytes(self.storage)

    def constant_bytes(self, numel: int) -> int:
        """Of what gives `numel` values back: maxima, their own constants, tables."""
        blocks, tables = self.blocks(numel), 4 * _TABLE
        if not self.double_quant:
            return 4 * blocks + tables
        return blocks + 4 * math.ceil(blocks / _NESTED) + 4 * _NESTED + 4 + tables

    def blocks(self, numel: int) -> int:
        """Maxima of `numel` values."""
        return -(-numel // self.block_size)
