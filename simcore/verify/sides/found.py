"""Holdings and calls of a rank: the value that both sides give, and that is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simcore.errors import InputError, Problem

__all__ = ["DTYPES", "Call", "Found", "Tensor", "found_of"]

DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""torch's names of types, and ours; others are the same."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter as the rank holds it at rest: its path in the model, local elements, dtype."""

    name: str
    num_elements: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.num_elements:,} elements of {self.dtype}"


@dataclass(frozen=True, slots=True)
class Call:
    """One collective: its kind, the phase that issues it ("" if not told), ranks of its group, dtype, payload bytes."""

    kind: str
    phase: str
    group_size: int
    dtype: str
    num_bytes: int

    def without_phase(self) -> Call:
        """The same call, where the other side does not know the phase."""
        return replace(self, phase="")

    def __str__(self) -> str:
        phase, dtype = (f" {one}" if one else "" for one in (self.phase and f"in {self.phase}", self.dtype))
        return f"{self.kind} of {self.num_bytes:,} bytes{dtype} over {self.group_size} ranks{phase}"


@dataclass(frozen=True, slots=True)
class Found:
    """Answer of one side about one rank.

    `tensors`: in the order of the model; `calls`: in the order of issue, or None where no step is run; `sizes`: further
    numbers by name, such as the peak in bytes; `groups`: ranks of each communicator that the rank is in, by axis.
    `versions`: of the packages that answered, {} of the engine.
    """

    tensors: tuple[Tensor, ...]
    calls: tuple[Call, ...] | None
    sizes: Mapping[str, int]
    groups: Mapping[str, tuple[int, ...]]
    versions: Mapping[str, str]


def found_of(told: Mapping[str, Any]) -> Found:
    """Reads what a script of `real/` has printed; InputError if it is no such answer."""
    try:
        calls = told.get("calls")
        return Found(
            tuple(Tensor(name, int(size), DTYPES.get(dtype, dtype)) for name, size, dtype in told["tensors"]),
            None if calls is None else tuple(Call(kind, phase, int(size), DTYPES.get(dtype, dtype), int(num_bytes))
                                             for kind, phase, size, dtype, num_bytes in calls),
            {name: int(size) for name, size in told.get("sizes", {}).items()},
            {axis: tuple(ranks) for axis, ranks in told.get("groups", {}).items()},
            {str(name): str(version) for name, version in told["versions"].items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(Problem("", f"the framework's side gave no answer that can be read: {error!r}")) from None
