"""The host's part of putting rows in the order of experts, in operators of torch, as it was timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simcore.operators.counted import Operators
from simcore.operators.permuted import MULTIHOT, PERMUTE, UNPERMUTE

TIMED = json.loads((Path(__file__).parent / "truth" / "host" / "permutation-te-2.9.json").read_text(encoding="utf-8"))
PYTHON_US, TORCH_US, TRITON_US = 16, 5, 18


@pytest.mark.parametrize(("name", "expected"), [("permute", PERMUTE), ("unpermute", UNPERMUTE), ("multihot", MULTIHOT)])
def test_the_host_was_timed(name: str, expected: Operators) -> None:
    """Python of the wrappers and a launch of each of Triton's kernels, by the time of one operator with its launch."""
    timed = TIMED[name]
    for direction, count in expected._asdict().items():
        us = timed["operators"][direction] * PYTHON_US + timed["launches"][direction] * TRITON_US
        assert us / (PYTHON_US + TORCH_US) == pytest.approx(count, abs=0.6)
