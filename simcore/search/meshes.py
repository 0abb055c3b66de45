"""Meshes with a given number of GPUs: every way to write the number as a product of the free degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Final

from simcore.inputs.scenario import Mesh

__all__ = ["DEGREES", "meshes"]

DEGREES: Final = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Axes of the mesh whose product is the world size."""


def meshes(num_gpus: int, base: Mesh, free: Sequence[str], allowed: Mapping[str, Sequence[int]]) -> Iterator[
        dict[str, int]]:
    """Degrees of all free axes for each mesh of `num_gpus` ranks; `ep` runs over the divisors of the number.

    `free`: names of axes, `ep` among them or not; other axes keep their degree in `base`. `allowed`: for some axes the
    only degrees that are tried. Degrees ascend, the last axis fastest.
    """
    axes = [axis for axis in DEGREES if axis in free]
    fixed = prod(getattr(base, axis) for axis in DEGREES if axis not in axes)
    if num_gpus % fixed:
        return
    experts = [base.ep] if "ep" not in free else [
        degree for degree in _divisors(num_gpus) if degree in allowed.get("ep", (degree,))]
    for degrees in _products(num_gpus // fixed, len(axes)):
        mesh = dict(zip(axes, degrees, strict=True))
        if any(degree not in allowed.get(axis, (degree,)) for axis, degree in mesh.items()):
            continue
        yield from ({**mesh, "ep": degree} for degree in experts)


@cache
def _divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, int(number ** 0.5) + 1) if number % n == 0]
    return tuple(dict.fromkeys((*small, *(number // n for n in reversed(small)))))


def _products(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Tuples of `count` factors whose product is `number`."""
    if count == 0:
        if number == 1:
            yield ()
        return
    if count == 1:
        yield (number,)
        return
    for degree in _divisors(number):
        yield from ((degree, *others) for others in _products(number // degree, count - 1))
