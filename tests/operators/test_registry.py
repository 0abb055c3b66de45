"""Implementations by name."""

from __future__ import annotations

import pytest

from checkout import ROOT
from simcore.operators.implementation import Implementation
from simcore.operators.registry import IMPLEMENTATIONS, implementation_of


def test_every_package_with_an_implementation_has_a_name() -> None:
    folders = (ROOT / "simcore/operators").glob("*/implementation.py")
    assert sorted(path.parent.name for path in folders) == sorted(IMPLEMENTATIONS)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_implementation_fills_in_its_record(name: str) -> None:
    found = implementation_of(name)
    assert isinstance(found, Implementation)
    assert found.standing([]) is not None
