"""A scenario made smaller: the same layout of a model that is built, and runs, in seconds.

Layers of one kind are placed, gathered and reduced alike, so a few of each kind stand for all; so do a first, a middle
and a last microbatch. Where real tensors are computed, sequences are short. Nothing else is made smaller: widths,
vocabulary, experts and the mesh decide placement. What was made smaller is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.frameworks.setup import configuration
from simcore.inputs.loading import changed
from simcore.inputs.scenario import Scenario

__all__ = ["DEPTH", "depth_of", "smaller"]

DEPTH: Final = 4
"""Layers that are built if nothing else is asked for, more where the first ones are not of all kinds."""
MICROBATCHES: Final = 3
"""The first, one between and the last."""
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


def smaller(scenario: Scenario, layers: int | None, tokens: int | None) -> tuple[Scenario, tuple[str, ...]]:
    """Returns the scenario made smaller on every side, and what was made smaller.

    `layers`: number of layers; None: as few as have each kind. `tokens`: the most of a microbatch, of one sequence;
    None: as asked.
    """
    fewer = _shallow(scenario, layers)
    told = [f"{depth_of(fewer)} of {depth_of(scenario)} layers"] if fewer is not scenario else []
    if tokens is not None and tokens < fewer.training.seq_len * fewer.training.micro_batch_size:
        told.append(f"{min(tokens, fewer.training.seq_len)} of {fewer.training.seq_len:,} tokens, one sequence")
        count = fewer.num_microbatches * fewer.mesh.dp_replicate * fewer.mesh.dp_shard
        fewer = changed(fewer, {"training.seq_len": min(tokens, fewer.training.seq_len),
                                "training.micro_batch_size": 1, "training.global_batch_size": count})
    count = fewer.num_microbatches
    if count > MICROBATCHES:
        told.append(f"{MICROBATCHES} of {count} microbatches")
        batch = (fewer.training.global_batch_size or 0) // count * MICROBATCHES
        fewer = changed(fewer, {"training.global_batch_size": batch})
    return fewer, tuple(told)


def _shallow(scenario: Scenario, layers: int | None) -> Scenario:
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
