"""Launches of kernels that are not here."""

from __future__ import annotations

from typing import Any


class Launch:
    """A kernel that is launched and allocates nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getitem__(self, _grid: Any) -> Any:
        return lambda *_a, **_k: None

    def __call__(self, *_: Any, **__: Any) -> Launch:
        return self
