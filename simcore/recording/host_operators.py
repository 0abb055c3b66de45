"""The host's time in operators of torch, the unit in which Python is timed: see `host.operator` and `launch.py`.

An operator is 16 us of Python and C++ and a launch of 5 us (where both come from: `tests/truth/fit_priors.py`); how
long it takes on a kind of host is calibrated as one. What probes time has no launches in it, those come on top: one of
torch's kernels as above, one of Triton's 18 us (triton pull request 3648).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Operators", "operators"]

_PYTHON_US: Final = 16
_TORCH_US: Final = 5
_TRITON_US: Final = 18


class Operators(NamedTuple):
    """Of a call, and of its way back."""

    forward: int
    backward: int


def operators(timed: float, torch: int = 0, triton: int = 0) -> int:
    """That keep the host as long as what was timed to take as long as `timed` of them, with so many launches."""
    launches_us = _TORCH_US * torch + _TRITON_US * triton
    return round((_PYTHON_US * timed + launches_us) / (_PYTHON_US + _TORCH_US))
