"""Shape of a matrix product, or of attention, as one integer in column STREAM of a kernel's row, with its module.

Times depend on it beyond the FLOPs: see `timing/kernel_efficiency.py`. Two sides and the number of products are stored;
the FLOPs, two for a multiply-add, give the third side. For pointwise kernels, norms, copies, scans and permutations the
integer is the number of torch operators that a row stands for, see `timing/host_launch.py`; a pointwise kernel with the
number 1 stays a separate kernel even if a compiler runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MODULE_BITS", "Products", "groups_in", "module_of", "shape_of", "shape_of_heads", "shapes_in", "unpacked"]

_Ints = NDArray[np.int64]
MODULE_BITS = 3
_GROUP_BITS, _SIDE_BITS = 11, 24
_LARGEST = (1 << _SIDE_BITS) - 1


def shape_of(m: int, n: int, groups: int = 1, *, sums_rows: bool = False) -> int:
    """Packed shape, one integer, of `groups` matrix products with (m, n) outputs.

    0 for an empty output or for more than 2047 groups; sides above 2**24 - 1 are stored as that. `m` counts the rows of
    all products, which share them. With `sums_rows` the rows are the dimension that is summed over, and `m` is a side
    of each output.
    """
    each = m if sums_rows else -(-m // groups)
    sides = min(each, _LARGEST) << _SIDE_BITS | min(n, _LARGEST)
    return (sides << _GROUP_BITS | groups) << 1 | sums_rows if each and n and not groups >> _GROUP_BITS else 0


def shape_of_heads(keys: int, values: int, queries: int, *, backward: bool = False) -> int:
    """Packed shape, one integer, of attention: its FLOPs per exponential, and its tiles of 128 queries of one head.

    They are packed as `shape_of` packs two sides; `sums_rows` says that the kernel is `backward`, which has five
    products a score and not two. `keys`, `values`: number of elements of one head of each; `queries`: number of
    queries of all heads and sequences, at least one.
    """
    return shape_of((5 if backward else 2) * (keys + values), -(-queries // 128), sums_rows=backward)


class Products(NamedTuple):
    """Shapes that `shape_of` packed, as columns: entry i of each is of shape i.

    `rows`, `columns`: sides of one product's output; `groups`: number of products; `sums_rows`: True where the products
    sum over the rows that they share. All are 0 for shape 0.
    """

    rows: _Ints
    columns: _Ints
    groups: _Ints
    sums_rows: NDArray[np.bool_]


def unpacked(shapes: _Ints) -> Products:
    """Shapes that `shape_of` packed, as columns (arrays), in the same order."""
    sides = shapes >> _GROUP_BITS + 1
    groups = shapes >> 1 & (1 << _GROUP_BITS) - 1
    return Products(sides >> _SIDE_BITS, sides & _LARGEST, groups, (shapes & 1).astype(np.bool_))


def module_of(streams: _Ints) -> _Ints:
    """Module number (`rows.Module`) of each kernel, from column STREAM of its row."""
    return streams & (1 << MODULE_BITS) - 1


def groups_in(streams: _Ints) -> _Ints:
    """Number of matrix products of each kernel, from column STREAM of rows of products; 0 for shape 0."""
    return unpacked(shapes_in(streams)).groups


def shapes_in(streams: _Ints) -> _Ints:
    """Packed shape of each kernel, from column STREAM of its row.

    Of a product as `shape_of` packs it, of attention as `shape_of_heads`, of other kernels the number of torch
    operators that the row stands for; 0: none given.
    """
    return streams >> MODULE_BITS
