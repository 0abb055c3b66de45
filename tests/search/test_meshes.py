"""Meshes of a number of GPUs: every product once, fixed axes kept, only allowed degrees."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from simcore.inputs.scenario import Mesh
from simcore.search.meshes import DEGREES, meshes


@given(st.integers(1, 48), st.sets(st.sampled_from(DEGREES)))
def test_every_mesh_of_the_free_axes_is_there_once(num_gpus: int, free: set[str]) -> None:
    base = Mesh(dp_shard=2)
    found = [tuple(mesh.items()) for mesh in meshes(num_gpus, base, tuple(free), {})]
    assert len(found) == len(set(found))
    whole = {degrees for degrees in _every(num_gpus, len(DEGREES))
             if all(degree == getattr(base, axis) for axis, degree in zip(DEGREES, degrees, strict=True)
                    if axis not in free)}
    assert {tuple(dict(mesh).get(axis, getattr(base, axis)) for axis in DEGREES) for mesh in found} == whole


def _every(number: int, count: int) -> list[tuple[int, ...]]:
    """All tuples of `count` numbers from 1 to `number` with that product, by trying."""
    if count == 1:
        return [(number,)]
    return [(n, *others) for n in range(1, number + 1) if number % n == 0 for others in _every(number // n, count - 1)]


def test_expert_degrees_are_the_divisors_and_allowed_degrees_restrict() -> None:
    assert [mesh["ep"] for mesh in meshes(6, Mesh(), ("dp_shard", "ep"), {})] == [1, 2, 3, 6]
    assert [mesh["ep"] for mesh in meshes(6, Mesh(), ("dp_shard", "ep"), {"ep": (2, 4)})] == [2]
    found = list(meshes(8, Mesh(ep=2), ("dp_shard", "tp"), {"tp": (2, 8)}))
    assert [(mesh["tp"], mesh["dp_shard"], mesh["ep"]) for mesh in found] == [(8, 1, 2), (2, 4, 2)]
    assert all(prod(mesh[axis] for axis in ("dp_shard", "tp")) == 8 for mesh in found)
