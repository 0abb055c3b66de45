"""What Python does around a unit of FSDP2: for how many operators of torch its hooks keep the host busy.

torch 2.13 `distributed/fsdp/_fully_shard`, run with groups that send nothing and copies that do nothing
(`tests/truth/host/fully-shard-torch-2.13.json`): so much by unit, and so much by parameter, each of which is put into
its module and taken out of it by Python. An operator is Python for 16 of its 21 us (`host.operator`); on top comes the
launch of each copy, 5 us. The collective's call is not in it, nor are CUDA's streams and events, which a CPU has not.
Timed over 8 ranks; one rank, which gathers nothing and copies parameter by parameter, is assumed to take as long.
Forward hooks that run again in a replay are left out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["gathering", "reducing", "releasing"]

_PYTHON, _LAUNCH = 16 / 21, 5 / 21


class _Line(NamedTuple):
    """Operators by unit, and by parameter: a straight line, a quarter above or below what was timed at most."""

    unit: float
    param: float


_FORWARD: Final = _Line(62.5, 2.8)
"""Gathered, used, resharded; without resharding it is 6 % less."""
_BACKWARD: Final = _Line(24.0, 2.1)
"""Gathered again."""
_RELEASE: Final = _Line(19.5, 0.75)
"""Hooks of backward where nothing is gathered or reduced: a frozen unit, or a microbatch that only sums."""
_REDUCE: Final = _Line(17.0, 2.6)


def gathering(num_params: int, *, forward: bool) -> int:
    """Operators that a unit's gathering takes with its copy in and its copy out; in forward with all of its hooks."""
    return _operators(_FORWARD if forward else _BACKWARD, num_params, copies=2)


def releasing(num_params: int) -> int:
    """Operators that the hooks of a unit's backward take."""
    return _operators(_RELEASE, num_params, copies=0)


def reducing(num_params: int) -> int:
    """Operators that reducing so many gradients takes beyond that, with their copy in."""
    return _operators(_REDUCE, num_params, copies=1)


def _operators(line: _Line, num_params: int, copies: int) -> int:
    return round((line.unit + line.param * num_params) * _PYTHON + copies * _LAUNCH)
