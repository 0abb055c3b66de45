"""Other frameworks for a job: those that shard what its own copies to every rank, and those that answer it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from simcore.batch.advice import may_be_tried
from simcore.batch.changes import Change
from simcore.errors import InputError, RankscopeError
from simcore.frameworks.registry import framework_adapter, known_frameworks
from simcore.frameworks.setup import configuration
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario
from simcore.inputs.training import Pipeline
from simcore.models.graph import build
from simcore.models.registry import code_type
from simcore.results.report import Advice, Report
from simcore.search.meshes import DEGREES
from simcore.search.space import other_framework
from simcore.simulate import simulate
from simcore.studio.faster import tried

__all__ = ["AXES", "answering", "axes_of", "sharding"]

AXES: Final = (*DEGREES, "ep")
"""Axes of the mesh that a search frees."""
_MOST: Final = 3
_OWN: Final = {"training.loss": "auto", "training.optimizer.implementation": "auto", "training.recompute": "none"}
"""Keys whose values are often a framework's own, and their defaults."""


def axes_of(base: Scenario, name: str, implementation: str) -> tuple[str, ...]:
    """Axes of the mesh that may have more than one rank, as the framework says; all of an unknown one."""
    if name not in known_frameworks():
        return AXES
    adapter, fields = framework_adapter(name), configuration(base)
    if implementation == "auto":
        implementation = adapter.implementation_of(code_type(fields), base.training.method)
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


def answering(scenario: Scenario) -> tuple[tuple[dict[str, Any], Report], ...]:
    """Keys that give a job, which its own framework refuses, to at most 3 others, each with its report, by peak.

    Its own comes first where it takes the job with such keys. All ranks are data-parallel, and each framework has its
    own defaults, also for keys of `_OWN` that it does not take.
    """
    found: list[tuple[dict[str, Any], Report]] = []
    try:
        configuration(scenario)
    except InputError:  # no framework knows the model
        return ()
    stages: dict[str, Any] = {} if scenario.training.pipeline == Pipeline() else {"training.pipeline": {}}
    for name in known_frameworks():
        axis = "dp_shard" if "dp_shard" in axes_of(scenario, name, "auto") else "dp_replicate"
        keys = {**_framework_keys(scenario, name), **stages, "mesh": {axis: scenario.world_size}}
        taken = _taken(scenario, keys)
        found += [] if taken is None else [taken]
    return tuple(sorted(found, key=lambda one: ("framework" in one[0], one[1].highest_bytes or 0))[:_MOST])


def _taken(scenario: Scenario, keys: dict[str, Any]) -> tuple[dict[str, Any], Report] | None:
    """`keys` with which the job has an answer, with defaults for what the framework does not take; None without one."""
    for _ in (*_OWN, ""):
        try:
            report = simulate(changed(scenario, keys), timed=False)
        except InputError:  # a batch that so many ranks cannot share
            return None
        refused = {key: value for key, value in _OWN.items() if any(key in one.where for one in report.problems)}
        if report.status == "ok":
            return keys, report
        if refused.items() <= keys.items():
            return None
        keys = {**keys, **refused}
    return None


def _framework_keys(scenario: Scenario, name: str) -> dict[str, Any]:
    """Keys that choose another framework, without those that the job has as they are."""
    idle = {"framework_version": scenario.framework_version, "implementation": scenario.implementation}
    return {**{key: value for key, value in other_framework(scenario, name).items() if idle.get(key) != value},
            **_named_targets(scenario, name)}


def _named_targets(scenario: Scenario, name: str) -> dict[str, Any]:
    """Names of the modules that targets of adapters with a `*` in front match; {} without such, or without a match.

    NeMo's frameworks match paths by patterns, PEFT takes names (0.21.2 tuners/tuners_utils.py,
    check_target_module_exists).
    """
    patterns = scenario.training.lora.target_modules
    if patterns == "auto" or not all(one.startswith("*") and "." not in one for one in patterns):
        return {}
    try:
        fields = configuration(scenario)
        graph = build(fields, framework_adapter(name).implementation_of(code_type(fields), scenario.training.method))
    except RankscopeError:  # a model that the framework does not have
        return {}
    names = dict.fromkeys(spec.path.rpartition(".")[2] for specs in graph.tensors for spec in specs
                          if spec.module == "linear" and spec.path)
    found = [one for one in names if any(fnmatchcase(one, pattern) for pattern in patterns)]
    return {"training.lora.target_modules": found} if found else {}


def _changes(scenario: Scenario) -> Iterator[Change]:
    """The same job under each framework that shards, with its own defaults."""
    given = f", without {', '.join(scenario.framework_options)}" if scenario.framework_options else ""
    ranks = scenario.mesh.dp_replicate * scenario.mesh.dp_shard
    for name in known_frameworks():
        if "dp_shard" not in axes_of(scenario, name, "auto"):
            continue
        keys: dict[str, Any] = {**_framework_keys(scenario, name), "mesh.dp_replicate": 1, "mesh.dp_shard": ranks}
        yield Change("framework", 1, keys, warning=f"another framework, with its own defaults{given}")
