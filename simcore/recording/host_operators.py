"""Host time of Python code, counted in operators of torch: see `Host.operator` and `timing/host_launch.py`.

An operator is 16 us of Python and C++ and a launch of 5 us (source of both: `tests/truth/fit_priors.py`); its time on a
kind of host is calibrated as one number. Times measured by probes contain no launches, which are added: 5 us for a
kernel of torch, 18 us for one of Triton (triton pull request 3648).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Operators", "operators"]

_PYTHON_US: Final = 16
_TORCH_US: Final = 5
_TRITON_US: Final = 18


class Operators(NamedTuple):
    """Host time of a call and of its backward, in operators of torch."""

    forward: int
    backward: int


def operators(timed: float, torch: int = 0, triton: int = 0) -> int:
    """Number of torch operators whose host time is that of `timed` operators and of the given launches."""
    launches_us = _TORCH_US * torch + _TRITON_US * triton
    return round((_PYTHON_US * timed + launches_us) / (_PYTHON_US + _TORCH_US))
