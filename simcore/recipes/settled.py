"""A scenario as it runs: what it says, and what its framework chooses where it says nothing.

Two scenarios that are settled alike ask for the same: a recipe often states what a scenario leaves to its framework.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simcore.errors import InputError
from simcore.frameworks.registry import asked_adapter
from simcore.frameworks.setup import configuration, prepare
from simcore.inputs.document import Document, parse_value
from simcore.inputs.scenario import Scenario
from simcore.inputs.without_effect import reason
from simcore.inputs.yaml_parser import KeyPath, dotted
from simcore.models.blocks import Attention, Embedding, LatentAttention, LayerKind
from simcore.models.graph import ModelGraph
from simcore.models.network import Edge, edges
from simcore.operators.registry import implementation_of

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
_OF_EXPERTS: Final = ("framework_options.moe_", "framework_options.moe.", "mesh.etp")
_ROTATION: Final = "framework_options.apply_rope_fusion"
_BY_FAMILY: Final = ("deepseek_v2", "gpt_oss", "nemotron_h")
"""Families that Megatron's operators ask for (`operators/megatron`: router, attention, mtp)."""


@dataclass(frozen=True)
class Settled:
    """A scenario with every choice made: `values` by dotted key, its model as `graph` and by its `fields`.

    `idle`: keys that change nothing with this workload and method, with the reason. `chosen`: keys that the framework
    has chosen. `has_experts`: of the model.
    """

    scenario: Scenario
    values: Mapping[str, Any]
    graph: ModelGraph
    fields: Mapping[str, Any]
    idle: Mapping[str, str]
    chosen: frozenset[str]
    has_experts: bool

    def has_model_of(self, other: Settled) -> bool:
        """True if both have the same model: the same configuration, or the same layers, tensors and edges.

        Graphs with and without adapters are not compared: then the methods differ.
        """
        if self.scenario.training.method != other.scenario.training.method:
            return True
        return self.fields == other.fields or _shape(self.graph) == _shape(other.graph)

    def differing(self, other: Settled, means: Mapping[str, Any]) -> tuple[str, ...]:
        """Dotted keys in which two scenarios differ, in the order of this one's; `model` if their models differ.

        `means`: by key the value that says in the other what this one's says; None: that it may lack the key.
        """
        keys = [key for key in {**self.values, **other.values} if key not in {**self.idle, **other.idle}
                and key not in NOT_RUN]
        found = [key for key in keys if as_text(other.values.get(key)) not in self._texts(key, means)]
        return tuple(found if self.has_model_of(other) else ["model", *found])

    def _texts(self, key: str, means: Mapping[str, Any]) -> set[str]:
        own = as_text(self.values.get(key))
        return {own} if key not in means else {own, ""} if means[key] is None else {as_text(means[key])}


def settled(scenario: Scenario) -> Settled:
    """The scenario with its framework's choices, without notes on what they mean.

    Raises what `frameworks.setup.prepare` raises.
    """
    job, framework = prepare(scenario)
    values = dict(_leaves(scenario.normalised(), ()))
    del values["model"]
    chosen = {key: _choice(value, key) for key, value, _ in framework.defaults
              if " " not in key and values.get(key) in _OPEN}
    training, mesh = scenario.training, scenario.mesh
    implied = {"framework_version": framework.version, "implementation": job.graph.implementation,
               "mesh.etp": job.mesh.etp, "training.sequence_parallel": framework.sequence_parallel,
               "training.global_batch_size": training.micro_batch_size * mesh.dp_replicate * mesh.dp_shard}
    implied |= asked_adapter(scenario).implied
    implied = {key: value for key, value in implied.items() if values.get(key) in _OPEN}
    values |= {**chosen, **implied}
    idle = {key: why for key in values if key not in _FACTORS
            and (why := reason(scenario.workload, training.method, key))}
    if not any(isinstance(block, LatentAttention) or (isinstance(block, Attention) and block.rotary)
               for kind in job.graph.kinds for block in (one.block for one in kind.branches)):
        idle[_ROTATION] = "the model has no rotary positions"
    if not job.has_experts:
        idle |= {key: "the model has no experts" for key in values if key.startswith(_OF_EXPERTS)}
    return Settled(scenario, values, job.graph, configuration(scenario), idle, frozenset({*chosen, *implied}),
                   job.has_experts)


_FACTORS: Final = frozenset({"training.routing"})
"""Keys that are compared though no number depends on them, or not always."""


def _choice(text: str, key: str) -> Any:
    """Value of a framework's choice; one in words is text."""
    try:
        return parse_value(text, key)
    except InputError:
        return text


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
    """Parts that graphs of one model have in common.

    Where all families are built of the same layers (Megatron), families count where its operators ask for them, and
    names of modules, which are the configuration's, do not; rotary tables are not the embedding's.
    """
    if not implementation_of(graph.implementation).mixes_families:
        return (graph.implementation, [(layer.kind, layer.path) for layer in graph.layers], graph.kinds, graph.tensors,
                sorted(map(str, edges(graph.network))))
    return (graph.implementation, [layer.kind for layer in graph.layers], [*map(_of_megatron, graph.kinds)],
            graph.tensors, [graph.ends(kind) for kind in Edge])


def _of_megatron(kind: LayerKind) -> tuple[Any, ...]:
    block = replace(kind.block, rotary_dim=0) if isinstance(kind.block, Embedding) else kind.block
    branches = [(one.block, one.layer_norm, one.norm_bias, bool(one.behind)) for one in kind.branches]
    return (block, branches, kind.family if kind.family in _BY_FAMILY else "", kind.hidden, kind.dropout, kind.fp8,
            kind.scaled, kind.wide, kind.shared)
