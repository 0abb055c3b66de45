"""What Python does around a unit of FSDP2: for how many operators of torch its hooks keep the host busy.

torch 2.13 `distributed/fsdp/_fully_shard`, run with groups that send nothing and copies that do nothing
(`tests/truth/host/fully-shard-torch-2.13.json`): so much by unit, and so much by parameter, each of which is put into
its module and taken out of it by Python. The collective's call is not in it, nor are CUDA's streams and events, which
a CPU has not. Timed over 8 ranks; one rank, which gathers nothing and copies parameter by parameter, is assumed to take
as long, and so are units that stay gathered after forward. Forward hooks that run again in a replay are left out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from simcore.recording.host_operators import operators

__all__ = ["gathering", "reducing", "releasing"]


class _Line(NamedTuple):
    """Operators by unit, and by parameter: a straight line, a quarter above or below what was timed at most."""

    unit: float
    param: float

    def operators(self, num_params: int, copies: int) -> int:
        """With a launch of each copy."""
        return operators(self.unit + self.param * num_params, torch=copies)


_FORWARD: Final = _Line(62.5, 2.8)
"""Gathered, used, resharded."""
_BACKWARD: Final = _Line(24.0, 2.1)
"""Gathered again."""
_RELEASE: Final = _Line(19.5, 0.75)
"""Hooks of backward where nothing is gathered or reduced: a frozen unit, or a microbatch that only sums."""
_REDUCE: Final = _Line(17.0, 2.6)


def gathering(num_params: int, *, forward: bool) -> int:
    """Operators that a unit's gathering takes with its copy in and its copy out; in forward with all of its hooks."""
    return (_FORWARD if forward else _BACKWARD).operators(num_params, copies=2)


def releasing(num_params: int) -> int:
    """Operators that the hooks of a unit's backward take."""
    return _RELEASE.operators(num_params, copies=0)


def reducing(num_params: int) -> int:
    """Operators that reducing so many gradients takes beyond that, with their copy in."""
    return _REDUCE.operators(num_params, copies=1)
