"""The shared cache: results by arguments, and the least recently used go first."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.placement.mesh import IntArray
from simcore.program import row_cache
from simcore.program.row_cache import held, settle

made: list[tuple[int, int]] = []


@held()
def _array(number: int, *, width: int = 1) -> IntArray:
    made.append((number, width))
    return np.zeros(1000 * width, dtype=np.int64)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setattr(row_cache, "_ALL", row_cache._Results())


def test_equal_arguments_give_the_same_object() -> None:
    assert _array(1) is _array(1)
    assert _array(1) is not _array(1, width=2)
    assert made == [(1, 1), (1, 2)]


def test_the_least_recently_used_go_first_and_none_before_the_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "BYTES", 20_000)  # two arrays of 8,000 bytes
    for number in (1, 2, 3):
        _array(number)
    _array(1)
    assert len(_array) == 3
    settle()
    assert len(_array) == 2
    for number in (1, 3, 2):
        _array(number)
    assert [number for number, _ in made] == [1, 2, 3, 2]
    _array.cache_clear()
    assert not len(_array)
