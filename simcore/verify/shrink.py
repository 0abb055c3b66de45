"""A scenario with fewer layers: the same layout of a model that is built in seconds.

Layers of one kind are placed, gathered and reduced alike, so a few of each kind stand for all. Nothing else is made
smaller: widths, vocabulary, experts and the mesh decide placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.frameworks.setup import configuration
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario

__all__ = ["DEPTH", "depth_of", "shrunk"]

DEPTH: Final = 4
"""Layers that are built if nothing else is asked for, more where the first ones are not of all kinds."""
_COUNT: Final = ("num_hidden_layers", "n_layer", "n_layers")
_BY_LAYER: Final = ("hybrid_override_pattern", "layers_block_type", "layer_types")
"""Fields with an entry a layer."""


def depth_of(scenario: Scenario) -> int:
    """Number of layers that the scenario's model has; InputError if its configuration does not say."""
    fields = configuration(scenario)
    for name in _COUNT:
        if name in fields:
            return int(fields[name])
    for name in _BY_LAYER:
        if name in fields:
            return len(fields[name])
    raise InputError(Problem(scenario.where("model"), "the configuration says no number of layers"))


def shrunk(scenario: Scenario, layers: int | None) -> Scenario:
    """Returns the scenario with `layers` layers, or with as few as have each kind; itself if it has no more."""
    whole, stages = depth_of(scenario), scenario.mesh.pp * scenario.training.pipeline.virtual_stages
    fields = configuration(scenario)
    wanted = layers or max(DEPTH, _of_all_kinds(fields), 2 * stages if stages > 1 else 0)
    if wanted >= whole:
        return scenario
    given = {} if isinstance(scenario.model, str) else dict(scenario.model.overrides)
    cut = {name: fields[name][:wanted] for name in _BY_LAYER if fields.get(name)}
    count = {name: wanted for name in _COUNT if name in fields}
    model = {"config": scenario.model_name, "overrides": {**given, **cut, **count}}
    return changed(scenario, {"model": model}, "--layers")


def _of_all_kinds(fields: Mapping[str, Any]) -> int:
    """Length of the shortest beginning that has every kind of layer that the model has."""
    kinds = next((fields[name] for name in _BY_LAYER if fields.get(name)), None)
    dense = int(fields.get("first_k_dense_replace", 0) or 0)
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=0) if kinds else dense + bool(dense)
