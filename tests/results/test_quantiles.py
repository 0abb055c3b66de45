"""Quantiles by nearest rank."""

from __future__ import annotations

import numpy as np

from simcore.results.quantiles import quantiles


def test_quantiles_are_values() -> None:
    assert quantiles(np.arange(1, 101)).model_dump() == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert quantiles(np.array([[5]])).model_dump() == {"p50": 5, "p90": 5, "p99": 5, "max": 5}
    assert quantiles(np.array([3, 1, 2])).model_dump() == {"p50": 2, "p90": 3, "p99": 3, "max": 3}
