"""The host's part of putting rows in the order of experts, in operators of torch, as it was timed."""

from __future__ import annotations

import json

import pytest

from checkout import ROOT
from simcore.recording.host_operators import MULTIHOT, PERMUTE, UNPERMUTE, Operators, operators

TIMED = json.loads((ROOT / "tests/truth" / "host" / "permutation-te-2.9.json").read_text(encoding="utf-8"))

@pytest.mark.parametrize(("name", "expected"), [("permute", PERMUTE), ("unpermute", UNPERMUTE), ("multihot", MULTIHOT)])
def test_the_host_was_timed(name: str, expected: Operators) -> None:
    """Python of the wrappers and a launch of each of Triton's kernels."""
    timed = TIMED[name]
    for direction, count in expected._asdict().items():
        assert operators(timed["operators"][direction], triton=timed["launches"][direction]) == count
