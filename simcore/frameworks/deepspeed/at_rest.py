"""Bytes at rest under ZeRO: those of a rank's partition, and its padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from simcore.frameworks.deepspeed.experts.layers import axis_of
from simcore.frameworks.deepspeed.partitions import (
    exact_in_parts,
    flat_padding,
    gradient_elements,
    states_beside,
    updated_parts,
)
from simcore.frameworks.deepspeed.states.low_bit import beside_tensors_of
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.placement.plan import AtRestBytes, Placed, Plan
from simcore.units import dtype_bytes

__all__ = ["exact_in_pieces", "exact_of_parts", "mean_of", "partition_padding", "piece_padding"]


def mean_of(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns the bytes at rest of a class of ranks by component, on average, with scales of flat states."""
    muons = plan.framework.strategy_as(ZeroStrategy).orthogonalizes
    return _shared_out(plan.at_rest(), states_beside(plan)) if muons else _with_flat_states(plan, plan.at_rest())


def partition_padding(plan: Plan, components: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]:
    """Returns the bytes of (parameters, gradients) that ZeRO-1 and 2 hold beyond those in `components`.

    `exact`: gradients of this rank, not of the rank with the most. Parameters are unsharded in one padded flat buffer;
    gradients are kept for each parameter that has elements in the rank's partition.
    """
    strategy = plan.framework.strategy_as(ZeroStrategy)
    size = dtype_bytes(plan.framework.compute_dtype)
    kept = gradient_elements(plan, exact=exact) * size * (not strategy.states_on_host)
    return flat_padding(plan) * size, kept - sum(c.grads_bytes for c in components.values())


def piece_padding(plan: Plan, components: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]:
    """Returns the bytes of (parameters, gradients) by which ZeRO-3 rounds up the rank's shards.

    They are what the rank holds beyond `components`.
    """
    size = dtype_bytes(plan.framework.compute_dtype)
    owned = [(count, p) for kind, count in plan.kind_counts for p in plan.kinds[kind] if p.spec.is_owned]
    stored = sum(count * p.rest_bytes for count, p in owned)
    parts = sum(count * p.padded for count, p in owned if p.trainable and p.policy.grad.space == "device")
    return (stored - sum(c.params_bytes for c in components.values()),
            parts * size - sum(c.grads_bytes for c in components.values()))


def exact_of_parts(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns the bytes at rest of one rank under ZeRO-1 and 2 by component, with scales of flat states."""
    return _with_flat_states(plan, exact_in_parts(plan))


def exact_in_pieces(plan: Plan) -> dict[str, AtRestBytes]:
    """Returns bytes at rest of this rank by component of the model, under ZeRO-3.

    Every tensor is sharded separately, and the last ranks have the remainder. Optimizer states are as long as the
    padded shard.
    """
    totals = dict[str, AtRestBytes]()
    for kind, count in plan.kind_counts:
        for placed in (placed for placed in plan.kinds[kind] if placed.spec.is_owned):
            component, at = placed.spec.component, plan.mesh.axis(axis_of(placed)).coordinate(plan.rank)
            totals[component] = totals.get(component, AtRestBytes()) + _piece(placed, at).times(count)
    return _with_flat_states(plan, totals)


def _piece(placed: Placed, at: int) -> AtRestBytes:
    """Bytes of shard number `at` of a tensor, in units of stored elements."""
    rest, grad, spec = placed.policy.at_rest, placed.policy.grad, placed.spec
    piece = placed.padded // spec.copies // rest.values
    stored = math.prod(rest.stored_shape(placed.used_shape))
    inside = spec.copies * rest.values * max(0, min(piece, stored - at * piece))
    trained = inside * placed.trainable
    return AtRestBytes(rest.num_bytes(inside) * placed.rests_here + placed.constants,
                       trained * dtype_bytes(grad.dtype) * (grad.space == "device"), placed.state_bytes, inside,
                       trained)


def _with_flat_states(plan: Plan, components: dict[str, AtRestBytes]) -> dict[str, AtRestBytes]:
    """`components`, with the scales of flat states shared out by elements that are trained."""
    moments = plan.framework.strategy_as(ZeroStrategy).moments
    if moments is None:
        return components
    return _shared_out(components, beside_tensors_of(plan, moments, updated_parts(plan)))


def _shared_out(components: dict[str, AtRestBytes], beside: Mapping[str, int]) -> dict[str, AtRestBytes]:
    more = sum(beside.values())
    trained = max(1, sum(one.num_trainable_params for one in components.values()))
    return {name: replace(one, optimizer_bytes=one.optimizer_bytes + more * one.num_trainable_params // trained)
            for name, one in components.items()}
