"""Sums that may pass 64 bits: numpy wraps them in silence, so they are made of Python's integers, or refused."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["countable", "dot", "fitting"]

_MOST: Final = 2.0**62
"""Half of what 64 bits hold with a sign: floats, which tell what comes, are rounded."""


def countable(values: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[Any]:
    """`values`, ready for the sum of `values * times`: as Python integers where that might pass 64 bits."""
    return values if float((np.abs(values) * times.astype(np.float64)).sum()) < _MOST else values.astype(object)


def dot(values: NDArray[np.int64], times: NDArray[np.int64]) -> int:
    """The sum of `values * times`, exactly."""
    return int(countable(values, times) @ times)


def fitting(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """`values`, whose running sums 64 bits can count; OverflowError for others."""
    if float(np.abs(values).sum(dtype=np.float64)) >= _MOST:
        raise OverflowError("sums pass 64 bits")
    return values
