"""Other frameworks that shard what the job's own framework copies to every rank, where nothing makes it fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from simcore.batch.advice import may_be_tried
from simcore.batch.changes import Change
from simcore.errors import RankscopeError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.frameworks.setup import configuration
from simcore.inputs.scenario import Scenario
from simcore.models.graph import build
from simcore.results.report import Advice
from simcore.search.meshes import DEGREES
from simcore.search.space import other_framework
from simcore.studio.faster import tried

__all__ = ["AXES", "axes_of", "sharding"]

AXES: Final = (*DEGREES, "ep")
"""Axes of the mesh that a search frees."""
_MOST: Final = 3


def axes_of(base: Scenario, name: str, implementation: str) -> tuple[str, ...]:
    """Axes of the mesh that may have more than one rank, as the framework says; all of an unknown one."""
    if name not in known_frameworks():
        return AXES
    adapter, fields = framework_adapter(name), configuration(base)
    if implementation == "auto":
        implementation = adapter.implementation_of(str(fields.get("model_type")), base.training.method)
    try:
        closed = set(AXES).difference(adapter.axes(build(fields, implementation)))
    except RankscopeError:  # a model that the framework does not have: each of its layouts says so
        closed = set()
    return tuple(axis for axis in AXES if axis not in closed)


def sharding(scenario: Scenario, known: Sequence[Advice]) -> tuple[Advice, ...]:
    """At most 3 other frameworks that shard over the job's data-parallel ranks and surely fit, the fastest first.

    Only for a job whose framework copies everything to each of several ranks, and that nothing `known` makes fit.
    """
    mesh = scenario.mesh
    if mesh.dp_replicate == 1 or any(one.verdict == "fits" for one in known) or not may_be_tried(scenario):
        return ()
    if "dp_shard" in axes_of(scenario, scenario.framework, scenario.implementation):
        return ()
    found = filter(None, (tried(scenario, change) for change in _changes(scenario)))
    return tuple(advice for _, advice in sorted(found, key=lambda one: -one[0])[:_MOST])


def _changes(scenario: Scenario) -> Iterator[Change]:
    """The same job under each framework that shards, with its own defaults."""
    given = f", without {', '.join(scenario.framework_options)}" if scenario.framework_options else ""
    ranks = scenario.mesh.dp_replicate * scenario.mesh.dp_shard
    idle = {"framework_version": scenario.framework_version, "implementation": scenario.implementation}
    for name in known_frameworks():
        if "dp_shard" not in axes_of(scenario, name, "auto"):
            continue
        other = {key: value for key, value in other_framework(scenario, name).items() if idle.get(key) != value}
        keys: dict[str, Any] = {**other, "mesh.dp_replicate": 1, "mesh.dp_shard": ranks}
        yield Change("framework", 1, keys, warning=f"another framework, with its own defaults{given}")
