"""A reference model beside the policy: one unit, which each of its passes gathers whole.

[Note: a reference in one unit] TRL 1.16.0 `models/utils.py` prepare_fsdp, for FSDP 2: `fully_shard` of the model alone,
with the plugin's own `reshard_after_forward`, so that all parameters are gathered before the first layer and freed
behind the head. Until then the output of the all-gather stays, too: nothing is gathered after it (torch 2.13
`_fsdp_param_group.py`, wait_for_unshard: all_gather_state). It is a root with streams of its own, so that the policy's
prefetch does not know it. Measured: `tests/truth/probe_pairs_fsdp2.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simcore.models.graph import ModelGraph
from simcore.placement.framework import Unit

__all__ = ["REFERENCE", "number_of", "reference_unit"]

REFERENCE: Final = "reference"
"""Component of a reference model's tensors, and name of its unit."""


def reference_unit(graph: ModelGraph, stage: Sequence[int], last: int, dtypes: tuple[str, str]) -> list[Unit]:
    """Unit of the reference model, in a list; none without one.

    `stage`: numbers of all layers; `last`: number of the last one inside the model's call; `dtypes`: of gathered
    parameters, and of gradients, of which it has none.
    """
    members = tuple((layer, numbers) for layer in stage if (numbers := tuple(
        i for i, spec in enumerate(graph.tensors[graph.layers[layer].kind]) if spec.component == REFERENCE)))
    compute, reduce = dtypes
    return [Unit(REFERENCE, members, stage[0], last, "dp_shard_cp", is_root=True, param_dtype=compute,
                 reduce_dtype=reduce, gather_dtype=compute)] if members else []


def number_of(units: Sequence[Unit]) -> int:
    """Index of the reference's unit in `units`, -1 without one."""
    return next((u for u, unit in enumerate(units) if unit.name == REFERENCE), -1)
