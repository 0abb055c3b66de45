"""The shape of a matrix product, or of attention, in one number, beside the module in column STREAM of a kernel's row.

What it is for stands in `waves.py` and `exponentials.py`: how long they take depends on more than their FLOPs. With the
FLOPs, of two a multiply-add, two sides and the number of products tell the third side. Of pointwise kernels, norms,
copies, scans and permutations it is how many operators of torch a row stands for, see `launch.py`; a pointwise kernel
that says one is one whatever compiles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["MODULE_BITS", "groups_in", "module_of", "shape_of", "shape_of_heads", "shapes_in", "unpacked"]

_Ints = NDArray[np.int64]
MODULE_BITS = 3
_GROUP_BITS, _SIDE_BITS = 11, 24
_LARGEST = (1 << _SIDE_BITS) - 1


def shape_of(m: int, n: int, groups: int = 1, *, sums_rows: bool = False) -> int:
    """A product whose output is (m, n); 0 if that is nothing, or of more groups than a number has room for.

    `groups` products share rows out by chance: `m` counts those of all, or, if `sums_rows`, rows are what is summed.
    """
    each = m if sums_rows else -(-m // groups)
    sides = min(each, _LARGEST) << _SIDE_BITS | min(n, _LARGEST)
    return (sides << _GROUP_BITS | groups) << 1 | sums_rows if each and n and not groups >> _GROUP_BITS else 0


def shape_of_heads(keys: int, values: int, *, backward: bool = False) -> int:
    """Attention whose heads have so many numbers of a key and of a value: FLOPs of an exponential, by those of 128.

    Forward two products a score, backward five.
    """
    products = 5 if backward else 2
    return shape_of(products * (keys + values), products * 256)


def unpacked(shapes: _Ints) -> tuple[_Ints, _Ints, _Ints, NDArray[np.bool_]]:
    """Rows and columns of each product's output, how many products there are, and whether rows are what is summed."""
    sides = shapes >> _GROUP_BITS + 1
    groups = shapes >> 1 & (1 << _GROUP_BITS) - 1
    return sides >> _SIDE_BITS, sides & _LARGEST, groups, (shapes & 1).astype(np.bool_)


def module_of(streams: _Ints) -> _Ints:
    """The module, of column STREAM of kernels."""
    return streams & (1 << MODULE_BITS) - 1


def groups_in(streams: _Ints) -> _Ints:
    """How many products a kernel does, of column STREAM of products."""
    return unpacked(shapes_in(streams))[2]


def shapes_in(streams: _Ints) -> _Ints:
    """Shapes of products, of column STREAM of kernels; 0 where a kernel is none."""
    return streams >> MODULE_BITS
