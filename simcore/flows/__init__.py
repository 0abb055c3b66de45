"""How buffers flow around the layers: gathered for use (`unshard`, `queued`), or resident (`resident`, `reduced`)."""

from __future__ import annotations

from simcore.flow import FlowMaker
from simcore.flows import flat
from simcore.flows.bucket import bucket_padding, exact_in_buckets
from simcore.flows.fetched import FetchedFlow
from simcore.flows.flattened import exact_in_units, unit_padding
from simcore.flows.partition import PartitionFlow, exact_in_parts, flat_padding
from simcore.flows.queued import QueuedFlow
from simcore.flows.reduced import ReducedFlow
from simcore.flows.resident import ResidentFlow
from simcore.flows.unshard import GatheredFlow
from simcore.flows.wrapped import WrappedFlow
from simcore.framework import Buckets, Framework, Queues, UnshardFlow
from simcore.plan import AtRestBytes, PlacedKind, Plan
from simcore.reducer import Reducer
from simcore.units import dtype_bytes
from simcore.wrapped import Wrapped
from simcore.zero import Zero

__all__ = ["exact_at_rest", "flow_of", "padding_bytes"]


def flow_of(framework: Framework) -> FlowMaker:
    """The flow that a framework's table asks for."""
    if isinstance(framework.flow, UnshardFlow):
        return GatheredFlow
    if isinstance(framework.flow, Reducer):
        return ReducedFlow
    if isinstance(framework.flow, Wrapped):
        return WrappedFlow
    if isinstance(framework.flow, Zero):
        return PartitionFlow if framework.flow.stage < 3 else FetchedFlow
    return QueuedFlow if isinstance(framework.flow, Queues) else ResidentFlow


def exact_at_rest(plan: Plan) -> dict[str, AtRestBytes]:
    """What rests on the plan's own rank: where parts of flat buffers differ from rank to rank, what lies in its own."""
    if isinstance(plan.framework.flow, Queues):
        return exact_in_buckets(plan)
    if isinstance(plan.framework.flow, Wrapped):
        return exact_in_units(plan)
    if isinstance(plan.framework.flow, Zero) and plan.framework.flow.stage < 3:
        return exact_in_parts(plan)
    return flat.exact_at_rest(plan) if isinstance(plan.framework.flow, Buckets) else plan.at_rest()


def padding_bytes(plan: Plan) -> tuple[int, int]:
    """What storage of (parameters, gradients) adds to the tensors of the plan's own rank: even cuts and flat buffers."""
    of_params, of_grads = _flat_padding(plan)
    even = sum(count * _even_padding(plan.kinds[kind]) for kind, count in plan.kind_counts)
    return plan.padding_bytes() + of_params, even + of_grads


def _even_padding(kind: PlacedKind) -> int:
    """What is frozen has no gradient to pad, nor has what is updated in backward when that is over."""
    return sum((p.padded - p.local) // p.grad_parts * dtype_bytes(p.life.grad.dtype) for p in kind
               if p.trainable and p.life.grad_waits)


def _flat_padding(plan: Plan) -> tuple[int, int]:
    flow = plan.framework.flow
    if isinstance(flow, (UnshardFlow, Reducer)):
        return 0, 0
    if isinstance(flow, Wrapped):
        return unit_padding(plan) * 4 * (not flow.on_host), 0
    if isinstance(flow, Zero):
        return flat_padding(plan) * dtype_bytes(plan.framework.compute_dtype) * (flow.stage < 3), 0
    if isinstance(flow, Queues):
        params, trained = bucket_padding(plan)
        return params, trained * dtype_bytes(flow.grad_dtype)
    return flat.padding_bytes(plan), flat.padding_elements(plan) * dtype_bytes(flow.grad_dtype)
