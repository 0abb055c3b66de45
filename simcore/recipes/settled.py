"""A scenario as it runs: what it says, and what its framework chooses where it says nothing.

Two scenarios that are settled alike ask for the same: a recipe often states what a scenario leaves to its framework.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simcore.frameworks.setup import configuration, prepare
from simcore.inputs.document import Document, parse_value
from simcore.inputs.scenario import Scenario
from simcore.inputs.without_effect import reason
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.models.graph import ModelGraph
from simcore.models.network import edges

__all__ = ["NOT_RUN", "Settled", "as_text", "given_keys", "settled"]

_WHOLE: Final = frozenset({"model", "topology", "evaluation", "rl", "generation", "training.recompute",
                           "training.lengths", "training.routing", "training.pipeline.layers",
                           *(f"training.offload.{part}" for part in ("params", "optimizer", "gradients",
                                                                      "activations"))})
"""Keys whose value is one, whatever its shape."""
NOT_RUN: Final[Mapping[str, str]] = {
    "name": "the recipe's file has a name", "search": "what `rankscope search` tries", "sweep": "one scenario of it",
    "limits.usable_memory": "how much of a device may be used", "limits.max_fill": "how much of a device may be used"}
"""Keys that no run has, each with what it is."""
_OPEN: Final = (None, "auto")


@dataclass(frozen=True)
class Settled:
    """A scenario with every choice made: `values` by dotted key, its model as `graph` and by its `fields`.

    `idle`: keys that change nothing with this workload and method, with the reason. `chosen`: keys that the framework
    has chosen.
    """

    scenario: Scenario
    values: Mapping[str, Any]
    graph: ModelGraph
    fields: Mapping[str, Any]
    idle: Mapping[str, str]
    chosen: frozenset[str]

    def has_model_of(self, other: Settled) -> bool:
        """True if both have the same model: the same configuration, or the same layers, tensors and edges."""
        return self.fields == other.fields or _shape(self.graph) == _shape(other.graph)

    def differing(self, other: Settled) -> tuple[str, ...]:
        """Dotted keys in which two scenarios differ, in the order of this one's; `model` if their models differ."""
        keys = [key for key in {**self.values, **other.values} if key not in {**self.idle, **other.idle}
                and key not in NOT_RUN]
        found = [key for key in keys if as_text(self.values.get(key)) != as_text(other.values.get(key))]
        return tuple(found if self.has_model_of(other) else ["model", *found])


def settled(scenario: Scenario) -> Settled:
    """The scenario with its framework's choices. Raises what `frameworks.setup.prepare` raises."""
    job, framework = prepare(scenario)
    values = dict(_leaves(scenario.normalised(), ()))
    del values["model"]
    chosen = {key: parse_value(value, key) for key, value, _ in framework.defaults if values.get(key) in _OPEN}
    training, mesh = scenario.training, scenario.mesh
    implied = {"framework_version": framework.version, "implementation": job.graph.implementation,
               "mesh.etp": job.mesh.etp, "training.sequence_parallel": framework.sequence_parallel,
               "training.global_batch_size": training.micro_batch_size * mesh.dp_replicate * mesh.dp_shard}
    implied = {key: value for key, value in implied.items() if values.get(key) in _OPEN}
    values |= {**chosen, **implied}
    idle = {key: why for key in values if key not in _FACTORS
            and (why := reason(scenario.workload, training.method, key))}
    return Settled(scenario, values, job.graph, configuration(scenario), idle, frozenset({*chosen, *implied}))


_FACTORS: Final = frozenset({"training.routing"})
"""Keys that are compared though no number depends on them, or not always."""


def given_keys(document: Document) -> dict[str, KeyPath]:
    """Path of each key that a scenario's file says, by dotted key; a model or a topology is one key."""
    return {dotted(path): path for path in _paths(document.data, ())}


def as_text(value: object) -> str:
    """Text by which two values of one key are compared; "" for a missing one."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _paths(data: Mapping[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    for key, value in data.items():
        inner = (*path, key)
        if isinstance(value, Mapping) and dotted(inner) not in _WHOLE and not _is_option(inner):
            yield from _paths(value, inner)
        else:
            yield inner


def _leaves(data: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[str, Any]]:
    for inner in _paths(data, path):
        value: Any = data
        for key in inner:
            value = value[key]
        yield dotted(inner), value


def _is_option(path: KeyPath) -> bool:
    """True for a framework option, whose name may have points; its value is one."""
    return len(path) > 1 and path[0] == "framework_options"


def _shape(graph: ModelGraph) -> tuple[Any, ...]:
    return (graph.implementation, [(layer.kind, layer.path) for layer in graph.layers], graph.kinds, graph.tensors,
            sorted(map(str, edges(graph.network))))
