"""Sums that may exceed 64 bits: numpy wraps silently, so they are computed with Python's integers, or refused."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["countable", "dot", "fitting"]

_MOST: Final = 2.0**62
"""Half of the largest signed 64-bit integer: the sums are estimated in floats, which round."""


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
