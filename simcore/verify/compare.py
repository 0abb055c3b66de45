"""Comparison of two answers about one rank: agreement, or the first difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from simcore.verify.sides.found import Call, Found, Tensor

__all__ = ["Line", "compared"]


@dataclass(frozen=True, slots=True)
class Line:
    """One subject of a comparison: how many things agree, or the first that does not.

    `difference`: "" if all agree. `skipped`: the reason why the subject was not compared, "" if it was.
    """

    subject: str
    num_compared: int = 0
    difference: str = ""
    skipped: str = ""


def compared(ours: Found, theirs: Found, skipped: Mapping[str, str]) -> tuple[Line, ...]:
    """Returns a line for each subject: placement, groups, collectives, and every size that either side knows.

    `skipped`: subject -> reason why it is not compared.
    """
    lines = (_placement(ours, theirs), *_groups(ours, theirs), _collectives(ours, theirs), *_sizes(ours, theirs))
    told = {line.subject for line in lines}
    return (*(Line(line.subject, skipped=skipped[line.subject]) if line.subject in skipped else line for line in lines),
            *(Line(subject, skipped=reason) for subject, reason in skipped.items() if subject not in told))


def _placement(ours: Found, theirs: Found) -> Line:
    """By name: both sides name parameters as the framework does; an order is no part of a placement."""
    told = {tensor.name: tensor for tensor in theirs.tensors}
    for tensor in ours.tensors:
        other = told.pop(tensor.name, None)
        if other != tensor:
            return Line("placement", difference=_of_tensor(tensor.name, tensor, other))
    if told:
        name, other = next(iter(told.items()))
        return Line("placement", difference=_of_tensor(name, None, other))
    return Line("placement", len(ours.tensors))


def _of_tensor(name: str, ours: Tensor | None, theirs: Tensor | None) -> str:
    mine, other = (str(one) if one else "no such tensor" for one in (ours, theirs))
    return f"{name}: rankscope {mine}, the framework {other}"


def _groups(ours: Found, theirs: Found) -> Iterator[Line]:
    if not theirs.groups:
        return
    for axis in sorted({*ours.groups, *theirs.groups}):
        if ours.groups.get(axis) != theirs.groups.get(axis):
            mine, other = (f"ranks {list(one)}" if one else "no group" for one in (
                ours.groups.get(axis), theirs.groups.get(axis)))
            yield Line("groups", difference=f"{axis}: rankscope {mine}, the framework {other}")
            return
    yield Line("groups", len(theirs.groups))


def _collectives(ours: Found, theirs: Found) -> Line:
    if theirs.calls is None or ours.calls is None:
        return Line("collectives", skipped="no step is run")
    for number, (mine, other) in enumerate(zip_longest(ours.calls, theirs.calls), 1):
        if mine != other:
            return Line("collectives", difference=f"call {number}: rankscope {_called(mine)}, the framework "
                        f"{_called(other)}")
    return Line("collectives", len(ours.calls))


def _called(call: Call | None) -> str:
    return "no call" if call is None else str(call)


def _sizes(ours: Found, theirs: Found) -> Iterator[Line]:
    for name in theirs.sizes:
        mine, other = ours.sizes.get(name), theirs.sizes[name]
        told = "nothing" if mine is None else f"{mine:,}"
        yield Line(name, 1) if mine == other else Line(
            name, difference=f"rankscope {told}, the framework {other:,} ({_share(mine, other)})")


def _share(mine: int | None, other: int) -> str:
    return "-" if not mine or not other else f"{(mine - other) / other:+.2%}"
