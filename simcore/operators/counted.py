"""For how many operators of torch something keeps the host busy: the unit in which Python is timed, see `launch.py`."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NONE", "Operators"]


class Operators(NamedTuple):
    """Of a call, and of its way back."""

    forward: int
    backward: int


NONE: Final = Operators(0, 0)
