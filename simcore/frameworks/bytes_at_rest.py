"""What a rank owns of what rests on it, and what storage adds to that.

A flat cut gives every rank a part of equal length, in which more or less of each tensor lies. `exact_at_rest` counts
the elements inside one rank's own part, `mean_at_rest` those of a class of ranks on average. Either way what is stored
is the same: what it holds beside those elements is padding, of parameters and of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from simcore.frameworks.deepspeed.partitions import exact_in_parts, flat_padding, gradient_elements
from simcore.frameworks.fsdp1.flat_parameters import exact_in_units, mean_in_units, unit_storage
from simcore.frameworks.megatron import flat_parameters as flat
from simcore.frameworks.megatron_fsdp.buckets import bucket_storage, exact_in_buckets
from simcore.placement.ddp_words import DdpSpec
from simcore.placement.framework import Fsdp2Spec, MegatronDdpSpec, MegatronFsdpSpec
from simcore.placement.fsdp1_words import Fsdp1Spec
from simcore.placement.plan import AtRestBytes, Placed, PlacedKind, Plan
from simcore.placement.zero_words import ZeroSpec
from simcore.units import dtype_bytes

__all__ = ["exact_at_rest", "mean_at_rest", "padding_bytes"]


def mean_at_rest(plan: Plan) -> dict[str, AtRestBytes]:
    """By component, as the mean of all ranks that share flat buffers with the plan's."""
    return mean_in_units(plan) if isinstance(plan.framework.flow, Fsdp1Spec) else plan.at_rest()


def exact_at_rest(plan: Plan) -> dict[str, AtRestBytes]:
    """What rests on the plan's own rank: where parts of flat buffers differ from rank to rank, what lies in its own."""
    flow = plan.framework.flow
    if isinstance(flow, MegatronFsdpSpec):
        return exact_in_buckets(plan)
    if isinstance(flow, Fsdp1Spec):
        return exact_in_units(plan)
    if isinstance(flow, ZeroSpec):
        return exact_in_parts(plan) if flow.stage < 3 else _exact_in_pieces(plan, flow)
    return flat.exact_at_rest(plan) if isinstance(flow, MegatronDdpSpec) else plan.at_rest()


def padding_bytes(plan: Plan, rest: Mapping[str, AtRestBytes], *, exact: bool) -> tuple[int, int]:
    """Bytes that storage of (parameters, gradients) on the device adds to `rest`, which is exact or the class mean."""
    flow = plan.framework.flow
    params, grads = (sum(getattr(r, name) for r in rest.values()) for name in ("params_bytes", "grads_bytes"))
    if isinstance(flow, (Fsdp2Spec, DdpSpec)):
        return plan.padding_bytes(), sum(count * _even_padding(plan.kinds[kind]) for kind, count in plan.kind_counts)
    if isinstance(flow, Fsdp1Spec):
        stored, whole = unit_storage(plan)
        return stored - params, whole - grads
    if isinstance(flow, MegatronFsdpSpec):
        stored, trained = bucket_storage(plan)
        return stored - params, trained * dtype_bytes(flow.grad_dtype) - grads
    if isinstance(flow, ZeroSpec):
        return _zero(plan, flow, (params, grads), exact=exact)
    return flat.padding_bytes(plan), flat.padding_elements(plan) * dtype_bytes(flow.grad_dtype)


def _even_padding(kind: PlacedKind) -> int:
    """Bytes of gradients; what is frozen has none, nor has what is updated in backward when that is over."""
    return sum((p.padded - p.local) // p.grad_parts * dtype_bytes(p.policy.grad.dtype) for p in kind
               if p.trainable and p.policy.grad_waits)


def _zero(plan: Plan, flow: ZeroSpec, rest: tuple[int, int], *, exact: bool) -> tuple[int, int]:
    """ZeRO-1 and 2 keep whole parameters in a flat buffer, and gradients of all that touches the part, whole."""
    params, grads = rest
    size = dtype_bytes(plan.framework.compute_dtype)
    if flow.stage < 3:
        kept = gradient_elements(plan, exact=exact) * size * (not flow.states_on_host)
        return flat_padding(plan) * size, kept - grads
    mine = [(count, p) for kind, count in plan.kind_counts for p in plan.kinds[kind] if p.spec.is_owned]
    stored = sum(count * p.rest_bytes for count, p in mine)
    parts = sum(count * p.padded for count, p in mine if p.trainable and p.policy.grad.space == "device")
    return stored - params, parts * size - grads


def _exact_in_pieces(plan: Plan, flow: ZeroSpec) -> dict[str, AtRestBytes]:
    """Every tensor is cut by itself, and the last ranks have what is left of it; states are as long as the piece."""
    at, totals = plan.mesh.axis(flow.axis).coordinate(plan.rank), dict[str, AtRestBytes]()
    for kind, count in plan.kind_counts:
        for placed in (placed for placed in plan.kinds[kind] if placed.spec.is_owned):
            component = placed.spec.component
            totals[component] = totals.get(component, AtRestBytes()) + _piece(placed, at).times(count)
    return totals


def _piece(placed: Placed, at: int) -> AtRestBytes:
    """Of part number `at` of a tensor, in whole elements of what is stored."""
    rest, grad, spec = placed.policy.at_rest, placed.policy.grad, placed.spec
    piece = placed.padded // rest.values
    stored = spec.copies * math.prod(rest.stored_shape(spec.shape))
    inside = rest.values * max(0, min(piece, stored - at * piece))
    trained = inside * placed.trainable
    return AtRestBytes(rest.num_bytes(inside) * placed.rests_here + placed.constants,
                       trained * dtype_bytes(grad.dtype) * (grad.space == "device"), placed.state_bytes, inside,
                       trained)
