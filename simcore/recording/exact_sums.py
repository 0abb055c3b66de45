"""Exact sums of integers: of those that may exceed 64 bits, where numpy wraps silently, or the 53 bits of a float."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["countable", "dot", "fitting", "sums_by_key"]

_MOST: Final = 2.0**62
"""Half of the largest signed 64-bit integer: the sums are estimated in floats, which round."""
_EXACT: Final = 2.0**53
"""Integers below it are exact as floats."""


def countable(values: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[Any]:
    """`values` in a type in which the sum of `values * times` is exact.

    int64 as given, or, if that sum might exceed 64 bits, all of them as Python integers (dtype object).
    """
    return values if float((np.abs(values) * times.astype(np.float64)).sum()) < _MOST else values.astype(object)


def dot(values: NDArray[np.int64], times: NDArray[np.int64]) -> int:
    """Exact sum of `values * times`, element by element, as a Python integer."""
    return int(countable(values, times) @ times)


def fitting(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns `values` unchanged, whose running sums fit into 64 bits.

    Raises OverflowError if the sum of their absolute values reaches 2**62.
    """
    if float(np.abs(values).sum(dtype=np.float64)) >= _MOST:
        raise OverflowError("sums pass 64 bits")
    return values


def sums_by_key(keys: NDArray[np.int64], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Exact sums of `values` by their keys, which are from 0 to `size` - 1: entry k is the sum of those of key k.

    The sum of absolute values must fit into 64 bits.
    """
    if len(values) * max(int(values.max(initial=0)), -int(values.min(initial=0))) < _EXACT:
        return np.bincount(keys, weights=values, minlength=size).astype(np.int64)  # sums in floats, and is faster
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, keys, values)
    return sums
