"""Noise of measured numbers, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from simcore.validation.noise import Run, noise_by_source


def test_runs_of_one_configuration_are_compared_with_their_median() -> None:
    """8 and 12 are 20 % from 10; a release of 15 makes the median 12: a third, nothing, a quarter."""
    runs = [Run("s", "a", "1", 8), Run("s", "a", "1", 12), Run("s", "a", "2", 15), Run("s", "b", "1", 7)]
    noise = noise_by_source(runs)["s"]
    assert (noise.repeated, noise.equal) == pytest.approx((0.2, 0.25))
    assert (noise.num_repeated, noise.num_equal) == (2, 3)
    assert noise.floor == pytest.approx(0.25)


def test_sources_and_configurations_are_apart() -> None:
    noise = noise_by_source([Run("s", "a", None, 1), Run("t", "a", None, 2), Run("t", "b", None, 3)])
    assert [(one.source, one.repeated, one.equal, one.floor) for one in noise.values()] == [
        ("s", None, None, None), ("t", None, None, None)]
